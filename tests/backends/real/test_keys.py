"""Keys of a run: who gets in, who does not, and what is said about keys that cannot work."""

import gc
import os
import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.x509 import BasicConstraints, ExtendedKeyUsage, KeyUsage
from cryptography.x509.oid import ExtendedKeyUsageOID

from flockstep.backends.real.security import certificates, keys
from flockstep.backends.real.security.keys import Keys, create, name_of, rank_of

WORD = b"a word of the run"
SECONDS = 20


@pytest.fixture
def run(tmp_path):
    create(tmp_path / "run", 3)
    return tmp_path / "run"


@pytest.fixture
def foreign(tmp_path):
    create(tmp_path / "foreign", 3)
    return tmp_path / "foreign"


@pytest.fixture
def at(monkeypatch):
    """Keys made so many days from now."""

    def make(folder, nodes, *, days_from_now, days):
        with monkeypatch.context() as clock:
            clock.setattr(keys, "_now", lambda: datetime.now(UTC) + timedelta(days=days_from_now))
            create(folder, nodes, days=days)
        return folder

    return make


@dataclass
class End:
    """What one end of a connection saw."""

    got: bytes = b""
    error: Exception | None = None
    peer: dict | None = None
    version: str | None = None


def talk(server, client, asked):
    """A handshake over loopback, after which either end says a word and listens for one."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(SECONDS)

        def accept():
            connection, _ = listener.accept()
            return one_end(connection, server, server_side=True)

        accepted = pool.submit(accept)
        connection = socket.create_connection(listener.getsockname(), SECONDS)
        called = one_end(connection, client, server_hostname=asked)
        return accepted.result(SECONDS), called


def one_end(connection, context, **how):
    end = End()
    with connection:
        connection.settimeout(SECONDS)
        try:
            with context.wrap_socket(connection, **how) as secure:
                end.peer, end.version = secure.getpeercert(), secure.version()
                secure.sendall(WORD)
                end.got = secure.recv(len(WORD))
        except OSError as error:
            end.error = error
    return end


def intruder(side, home=None):
    """A context that takes anybody for granted, and shows a certificate if it has one."""
    context = ssl.SSLContext(side)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if home is not None:
        context.load_cert_chain(home / "node.pem", home / "node.key")
    return context


def refused_client(run, context, reason):
    server, client = talk(Keys.find(run, 0).server_context(), context, name_of(0))
    assert reason in str(server.error)
    assert server.got == client.got == b""


def refused_server(run, context, reason, *, asked=0):
    server, client = talk(context, Keys.find(run, 1).client_context(), name_of(asked))
    assert isinstance(client.error, ssl.SSLCertVerificationError)
    assert reason in client.error.verify_message
    assert server.got == client.got == b""


@pytest.mark.parametrize(("size", "server", "client"), [(1, 0, 0), (2, 0, 1), (2, 1, 0), (5, 3, 4)])
def test_two_nodes_of_a_run_know_each_other(tmp_path, size, server, client):
    create(tmp_path, size)
    contexts = Keys.find(tmp_path, server).server_context(), Keys.find(tmp_path, client).client_context()
    accepted, called = talk(*contexts, name_of(server))
    assert accepted.error is None
    assert called.error is None
    assert accepted.got == called.got == WORD
    assert (rank_of(accepted.peer), rank_of(called.peer)) == (client, server)
    assert accepted.version == called.version == "TLSv1.3"


def test_contexts_trust_one_authority_and_speak_one_version(run):
    found = Keys.find(run, 0)
    for context in found.server_context(), found.client_context():
        assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_3
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert len(context.get_ca_certs()) == 1
    assert found.client_context().check_hostname
    assert found.server_context().num_tickets == 0


def test_nodes_added_later_are_nodes_of_the_same_run(run):
    create(run, 5)
    server, client = talk(Keys.find(run, 4).server_context(), Keys.find(run, 0).client_context(), name_of(4))
    assert server.got == client.got == WORD


def test_a_client_without_a_certificate_is_refused(run):
    refused_client(run, intruder(ssl.PROTOCOL_TLS_CLIENT), "PEER_DID_NOT_RETURN_A_CERTIFICATE")


def test_a_client_of_another_run_is_refused(run, foreign):
    refused_client(run, intruder(ssl.PROTOCOL_TLS_CLIENT, foreign / "node-0001"), "unable to get local issuer")


def test_a_client_whose_time_is_over_is_refused(tmp_path, at):
    old = at(tmp_path / "run", 2, days_from_now=-30, days=1)
    (old / "node-0000").rename(tmp_path / "gone")
    assert create(old, 2) == [0]
    refused_client(old, intruder(ssl.PROTOCOL_TLS_CLIENT, old / "node-0001"), "certificate has expired")


def test_an_older_version_is_refused(run):
    context = intruder(ssl.PROTOCOL_TLS_CLIENT, run / "node-0001")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    refused_client(run, context, "UNSUPPORTED_PROTOCOL")


def test_a_node_cannot_make_nodes(run, tmp_path):
    """A certificate that node 1 signed, handed over with node 1's own."""
    signer = keys.pair(run / "node-0001", keys.NODE_FILES)
    now = datetime.now(UTC)
    made, key = certificates.node(name_of(2), signer, now, now + timedelta(days=1))
    certificates.place(tmp_path / "made", {"node.pem": made, "node.key": key})
    with (tmp_path / "made" / "node.pem").open("ab") as file:
        file.write((run / "node-0001" / "node.pem").read_bytes())
    refused_client(run, intruder(ssl.PROTOCOL_TLS_CLIENT, tmp_path / "made"), "CERTIFICATE_VERIFY_FAILED")


def test_a_server_of_another_run_is_refused(run, foreign):
    refused_server(run, intruder(ssl.PROTOCOL_TLS_SERVER, foreign / "node-0000"), "unable to get local issuer")


def test_a_server_whose_time_is_over_is_refused(tmp_path, at):
    old = at(tmp_path / "run", 2, days_from_now=-30, days=1)
    (old / "node-0001").rename(tmp_path / "gone")
    assert create(old, 2) == [1]
    refused_server(old, intruder(ssl.PROTOCOL_TLS_SERVER, old / "node-0000"), "certificate has expired")


def test_no_node_can_answer_for_another(run):
    refused_server(run, Keys.find(run, 2).server_context(), "Hostname mismatch", asked=0)


def test_a_client_must_say_whom_it_asks_for(run):
    with socket.socket() as connection, pytest.raises(ValueError, match="check_hostname requires server_hostname"):
        Keys.find(run, 0).client_context().wrap_socket(connection)


@pytest.mark.parametrize("side", ["server_context", "client_context"])
def test_a_peer_that_hangs_up_while_its_connection_is_secured_leaves_nothing_open(run, side):
    context = getattr(Keys.find(run, 0), side)()
    name = {} if context.protocol == ssl.PROTOCOL_TLS_SERVER else {"server_hostname": name_of(1)}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        plain, _ = listener.accept()
    file = plain.fileno()
    # Closing it resets the connection.
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    with pytest.raises(ConnectionResetError):
        context.wrap_socket(plain, server_side=not name, do_handshake_on_connect=False, **name)
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(file)


def test_what_certificates_allow(run):
    authority, node = keys.read(run / "node-0001" / "ca.pem"), keys.read(run / "node-0001" / "node.pem")
    basic, uses = (authority.extensions.get_extension_for_class(kind) for kind in (BasicConstraints, KeyUsage))
    assert (basic.value.ca, basic.value.path_length, uses.value.key_cert_sign) == (True, 0, True)  # type: ignore[attr-defined]
    basic, uses = (node.extensions.get_extension_for_class(kind) for kind in (BasicConstraints, KeyUsage))
    assert (basic.value.ca, uses.value.key_cert_sign, uses.value.digital_signature) == (False, False, True)  # type: ignore[attr-defined]
    ends = node.extensions.get_extension_for_class(ExtendedKeyUsage).value
    assert set(ends) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert node.public_key().curve.name == authority.public_key().curve.name == "secp256r1"


# Names


@pytest.mark.parametrize("rank", [0, 3, 10000])
def test_names_and_ranks(rank):
    assert name_of(rank) == f"node-{rank}.flockstep"
    assert rank_of({"subjectAltName": (("DNS", name_of(rank)),)}) == rank


@pytest.mark.parametrize(
    "names",
    [
        (),
        (("DNS", "example.org"),),
        (("DNS", "node-03.flockstep"),),
        (("DNS", "node--3.flockstep"),),
        (("DNS", "node-3.flockstep.example.org"),),
        (("DNS", "node-3.flockstep\n"),),
        (("DNS", "node-٣.flockstep"),),
        (("DNS", "*.flockstep"),),
        (("URI", "node-3.flockstep"),),
        (("DNS", "node-3.flockstep"), ("DNS", "node-4.flockstep")),
    ],
)
def test_what_names_no_node_or_two_has_no_rank(names):
    with pytest.raises(ValueError, match="must name one node"):
        rank_of({"subjectAltName": names})


@pytest.mark.parametrize("nothing", [{}, None])
def test_a_peer_that_showed_nothing_has_no_rank(nothing):
    with pytest.raises(ValueError, match="must name one node"):
        rank_of(nothing)


def test_a_name_is_of_a_rank():
    with pytest.raises(ValueError, match="rank must be at least 0, got -1"):
        name_of(-1)


# Files


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_only_their_owner_can_read_keys(tmp_path, size, umask):
    before = os.umask(umask)
    try:
        assert create(tmp_path / "a" / "run", size) == list(range(size))
    finally:
        os.umask(before)
    places = [tmp_path / "a" / "run", *(tmp_path / "a" / "run").rglob("*")]
    assert len(places) == 1 + 3 + 4 * size
    for place in places:
        assert place.stat().st_mode & 0o777 == (0o700 if place.is_dir() else 0o600), place


def test_what_is_there_is_kept_to_the_byte(run):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert create(run, 5) == [3, 4]
    assert create(run, 5) == create(run, 2) == []
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert after.items() > before.items()
    assert len(after) == len(before) + 6


def test_whoever_comes_second_overwrites_nothing(run):
    pair = keys.pair(run / "authority", keys.AUTHORITY_FILES)
    before = (run / "authority" / "ca.key").read_bytes()
    assert not certificates.place(run / "authority", {"ca.pem": pair[0], "ca.key": pair[1]})
    assert (run / "authority" / "ca.key").read_bytes() == before
    assert sorted(path.name for path in run.iterdir()) == ["authority", "node-0000", "node-0001", "node-0002"]


def test_what_cannot_be_put_in_place_leaves_nothing_behind(run, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        create(run, 4)
    assert sorted(path.name for path in run.iterdir()) == ["authority", "node-0000", "node-0001", "node-0002"]


def test_certificates_last_as_long_as_asked(tmp_path):
    create(tmp_path, 1, days=7)
    left = Keys.find(tmp_path, 0).expires - datetime.now(UTC)
    assert timedelta(days=6, hours=23) < left <= timedelta(days=7)


@pytest.mark.parametrize(
    ("nodes", "days", "words"),
    [
        (0, 365, "nodes must be at least 1, got 0"),
        (1, 0, "days must be at least 1, got 0"),
        (1, 3651, "days must be at most 3650, got 3651"),
    ],
)
def test_counts_that_make_no_sense(tmp_path, nodes, days, words):
    with pytest.raises(ValueError, match=words):
        create(tmp_path / "run", nodes, days=days)
    assert not (tmp_path / "run").exists()


def test_an_authority_signs_nothing_that_outlives_it(tmp_path, at):
    at(tmp_path, 1, days_from_now=-3600, days=1)
    with pytest.raises(ValueError, match=r"ends on .* UTC, before 365 days are over\n  ask for fewer days"):
        create(tmp_path, 2)
    assert create(tmp_path, 2, days=49) == [1]


def test_nodes_without_their_authority_are_left_alone(run, tmp_path):
    (run / "authority").rename(tmp_path / "gone")
    with pytest.raises(
        ValueError, match=r"has keys of nodes 0, 1, 2 but not the authority .*\n  bring .*authority back"
    ):
        create(run, 4)
    with pytest.raises(ValueError, match="has keys of node 1 but not the authority"):
        create(run / "node-0001", 4)


# Finding


def copy_over(source, target):
    target.write_bytes(source.read_bytes())


def test_in_the_whole_folder_or_in_a_nodes_own(run):
    assert Keys.find(run, 2) == Keys.find(str(run / "node-0002"), 2) == Keys(run / "node-0002", 2)
    assert keys.ranks_in(run) == [0, 1, 2]
    assert keys.ranks_in(run / "node-0002") == [2]
    assert keys.ranks_in(run / "authority") == keys.ranks_in(run / "nowhere") == []


def complaint(folder, rank):
    """The sentence and its fix."""
    with pytest.raises(ValueError) as told:
        Keys.find(folder, rank)
    what, fix = str(told.value).split("\n")
    return what, fix


def test_no_folder(tmp_path):
    what, fix = complaint(tmp_path / "keys", 3)
    assert what == f"there is no folder {tmp_path / 'keys'} with the keys of node 3"
    assert "copy node-0003 there" in fix
    assert "`flockstep keys create DIR --nodes 4`" in fix


def test_no_node(run):
    what, fix = complaint(run, 3)
    assert what == f"{run} has no keys of node 3"
    assert "`flockstep keys create DIR --nodes 4`" in fix


@pytest.mark.parametrize("name", keys.NODE_FILES)
def test_no_file(run, name):
    (run / "node-0001" / name).unlink()
    for folder in (run, run / "node-0001"):
        what, fix = complaint(folder, 1)
        assert what == f"{run / 'node-0001'} has no {name}"
        assert "copy the folder again" in fix


def test_another_nodes(run):
    what, fix = complaint(run / "node-0001", 2)
    assert what == f"{run / 'node-0001'} holds the certificate of node 1, not of node 2"
    assert "copy node-0002 here" in fix


@pytest.mark.parametrize("name", keys.NODE_FILES)
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_open_to_others(run, name, mode):
    path = run / "node-0001" / name
    path.chmod(mode)
    what, fix = complaint(run, 1)
    assert what == f"others than its owner may read {path}"
    assert fix == f"  chmod 600 {path}"


def test_no_longer_valid(tmp_path, at):
    at(tmp_path, 2, days_from_now=-30, days=1)
    what, fix = complaint(tmp_path, 1)
    ended = datetime.now(UTC) - timedelta(days=29)
    assert what.startswith(f"the certificate of node 1 ended on {ended:%Y-%m-%d} ")
    assert what.endswith(" UTC")
    assert "delete DIR/node-0001, then `flockstep keys create DIR --nodes 2`" in fix


def test_not_yet_valid(tmp_path, at):
    at(tmp_path, 2, days_from_now=2, days=1)
    what, fix = complaint(tmp_path, 1)
    assert what.startswith("the certificate of node 1 begins on ")
    assert "set this machine's clock" in fix
    assert "`flockstep keys create`" in fix


def test_a_clock_that_is_a_little_behind(tmp_path, at):
    at(tmp_path, 1, days_from_now=0.5 / 24, days=1)
    assert Keys.find(tmp_path, 0).rank == 0


def test_a_key_of_another_certificate(run):
    copy_over(run / "node-0000" / "node.key", run / "node-0001" / "node.key")
    what, fix = complaint(run, 1)
    assert what == f"{run / 'node-0001' / 'node.key'} does not belong to the certificate in node.pem"
    assert "copy the folder again" in fix


def test_another_authority(run, foreign):
    copy_over(foreign / "node-0001" / "ca.pem", run / "node-0001" / "ca.pem")
    what, fix = complaint(run, 1)
    assert what == f"{run / 'node-0001' / 'node.pem'} is not signed by the authority in ca.pem"
    assert "copy the folder again" in fix


@pytest.mark.parametrize(
    ("name", "kind"), [("ca.pem", "certificate"), ("node.pem", "certificate"), ("node.key", "private key")]
)
@pytest.mark.parametrize("content", [b"", b"\xff\x00 not a key"])
def test_files_that_are_something_else(run, name, kind, content):
    (run / "node-0001" / name).write_bytes(content)
    what, fix = complaint(run, 1)
    assert what == f"{run / 'node-0001' / name} is not a {kind}"
    assert "copy the folder again" in fix


def test_a_certificate_of_no_node(run):
    """The authority's own, with its key, put in a node's place."""
    copy_over(run / "authority" / "ca.pem", run / "node-0001" / "node.pem")
    copy_over(run / "authority" / "ca.key", run / "node-0001" / "node.key")
    what, fix = complaint(run, 1)
    assert what == "a certificate must name one node, got []"
    assert "`flockstep keys create`" in fix


def test_ranks_are_counted_from_zero(run):
    with pytest.raises(ValueError, match="rank must be at least 0, got -1"):
        Keys.find(run, -1)
