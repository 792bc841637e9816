"""``flockstep doctor``: what is right is shown, what is wrong is named, and its fix with it."""

import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import warm
from typer.testing import CliRunner

from flockstep import units
from flockstep.backends.real.doctor import identity, local_checks, lookups
from flockstep.backends.real.doctor.probe_server import ProbeServer
from flockstep.backends.real.mailbox import request_handler
from flockstep.backends.real.mailbox.endpoint import LOOPBACK, ListenOn, open_endpoint
from flockstep.backends.real.mailbox.identity_query import ask_identity
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.wire import Refused
from flockstep.backends.real.security import keys
from flockstep.backends.real.security.keys import Keys
from flockstep.cli import app
from flockstep.compare.lab.commands import Missing
from flockstep.compare.lab.lab import Lab

FLOCKSTEP = str(Path(sys.executable).with_name("flockstep"))
LIMITS = Limits(60.0)
CHECKS_OF_A_DOCTOR = ["name", "connection", "keys", "versions", "mailbox", "clock", "latency", "bandwidth", "both ways"]
LINE = re.compile(r"^  (ok|warning|FAILED|skipped) +(\w+(?: \w+)?)  +(.*)$")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in ("KEYS", "HOST", "PORT", "INSECURE"):
        monkeypatch.delenv(f"FLOCKSTEP_{name}", raising=False)


class Told:
    """What the command said, by section: check, mark, words."""

    def __init__(self, code, text):
        self.code, self.text, self.sections = code, text, {}
        rows = {}
        for line in text.splitlines():
            if (match := LINE.match(line)) is not None:
                rows[match[2]] = [match[1], match[3], ""]
            elif line.startswith(" " * 11 + "fix: "):
                rows[list(rows)[-1]][2] = line.strip().removeprefix("fix: ")
            elif line and not line.startswith(" "):
                rows = self.sections[line] = {}

    @property
    def there(self):
        (rows,) = [rows for title, rows in self.sections.items() if title.startswith("From here to ")]
        return rows

    def fails(self, check, words, fix):
        """Just one thing there failed, the last that was looked at."""
        assert self.code == 1, self.text
        assert list(self.there)[-1] == check, self.text
        mark, seen, told = self.there[check]
        assert mark == "FAILED", self.text
        assert words in seen
        assert fix in told
        assert [row[0] for row in self.there.values()].count("FAILED") == 1


def examine(*arguments):
    result = CliRunner().invoke(app, ["doctor", "--quick", *map(str, arguments)], env={"TERM": "dumb"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return Told(result.exit_code, result.output)


@contextmanager
def listening(*arguments):
    """A doctor who listens, in a process of its own; gives its address, and ends it with Ctrl-C."""
    process = subprocess.Popen(
        [FLOCKSTEP, "doctor", "--listen", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        first = process.stdout.readline()
        assert "A doctor listens at " in first, process.stderr.read()
        for line in process.stdout:
            if line == "Ctrl-C ends it.\n":
                break
        yield re.search(r"listens at (\S+?)[,.]?(?:\s|$)", first)[1]
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert out.endswith("Ended.\n")
        assert "Traceback" not in errors
    finally:
        process.kill()
        process.communicate()


def office(rank=0, found=None):
    return ProbeServer(rank, LIMITS, ListenOn(keys=found))


@pytest.fixture
def run(tmp_path):
    keys.create(tmp_path / "run", 3)
    return tmp_path / "run"


def expired(folder, monkeypatch):
    """Keys of two nodes, whose time is over."""
    with monkeypatch.context() as clock:
        clock.setattr(keys, "_now", lambda: datetime.now(UTC) - timedelta(days=30))
        keys.create(folder, 2, days=1)
    return folder


# This machine


def test_this_machine_and_all_deadlines():
    told = examine("--timeout", "12s")
    assert told.code == 0, told.text
    assert list(told.sections["This machine"]) == ["versions", "own name", "own address", "mailbox", "open files"]
    assert "torch" in told.sections["This machine"]["versions"][1]
    assert "Deadlines, all from --timeout 12 s" in told.text
    for name, seconds in Limits(12).by_name().items():
        assert re.search(rf"^ +{name} +{seconds:g} s$", told.text, re.MULTILINE)
    assert re.search(r"^5 checks, 0 failed, \d warnings?\.$", told.text, re.MULTILINE)


def slow(*_):
    return ["10.0.0.7"], 5.0


def unresolved(*_):
    raise lookups.Unresolved("no answer in 10 s")


@pytest.mark.parametrize(("answer", "words"), [(slow, "found in 5 s"), (unresolved, "no answer in 10 s")])
def test_a_name_that_stalls_is_a_warning_with_a_line_for_etc_hosts(monkeypatch, answer, words):
    monkeypatch.setattr(lookups, "addresses", answer)
    monkeypatch.setattr(lookups, "name", answer)
    told = examine()
    assert told.code == 0
    for check in ("own name", "own address"):
        mark, seen, fix = told.sections["This machine"][check]
        assert (mark, words in seen, "/etc/hosts" in fix) == ("warning", True, True)


def test_a_lookup_that_hangs_is_given_up(monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(socket, "gethostbyaddr", lambda address: over.wait())
    with pytest.raises(lookups.Unresolved, match=r"no answer in 0\.01 s"):
        lookups.name("127.0.0.1", 0.01)
    over.set()


def test_a_name_that_leads_to_loopback_is_no_use_to_other_machines(monkeypatch):
    monkeypatch.setattr(lookups, "addresses", lambda *_: (["127.0.1.1"], 0.0))
    assert local_checks.own_name(1.0).mark == "ok"
    finding = local_checks.own_name(1.0, apart=True)
    assert finding.mark == "warning"
    assert "GLOO_SOCKET_IFNAME" in finding.fix


@pytest.mark.parametrize(("limit", "mark"), [(256, "warning"), (4096, "ok"), (-1, "ok")])
def test_open_files(monkeypatch, limit, mark):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    finding = local_checks.open_files()
    assert finding.mark == mark
    assert ("ulimit -n" in finding.fix) == (mark == "warning")


# Keys


@pytest.mark.parametrize(("days", "mark"), [(365, "ok"), (7, "warning")])
def test_how_long_keys_are_valid(tmp_path, days, mark):
    keys.create(tmp_path, 2, days=days)
    told = examine("--keys", tmp_path, "--rank", 1)
    assert told.code == 0
    rows = told.sections[f"Keys in {tmp_path}"]
    assert rows["certificate"][0] == mark
    assert f"{days - 1} days left" in rows["certificate"][1]
    assert rows["permissions"][0] == "ok"


def test_keys_from_the_environment_of_the_one_node_that_has_any(run, monkeypatch):
    monkeypatch.setenv("FLOCKSTEP_KEYS", str(run / "node-0002"))
    told = examine()
    assert told.code == 0
    assert told.sections[f"Keys in {run / 'node-0002'}"]["certificate"][1].startswith("node 2, valid until ")


def test_keys_that_do_not_work_fail_with_their_fix(tmp_path, monkeypatch):
    expired(tmp_path, monkeypatch)
    told = examine("--keys", tmp_path)
    assert told.code == 1
    mark, seen, fix = told.sections[f"Keys in {tmp_path}"]["keys"]
    assert mark == "FAILED"
    assert "the certificate of node 0 ended on" in seen
    assert "`flockstep keys create DIR --nodes 1`" in fix


def test_keys_that_others_read(run):
    (run / "node-0000" / "node.key").chmod(0o644)
    told = examine("--keys", run)
    assert told.code == 1
    assert told.sections[f"Keys in {run}"]["keys"][2].startswith("chmod 600 ")


def test_nothing_is_tested_with_keys_that_do_not_work(tmp_path):
    with office() as peer:
        told = examine(peer.address, "--keys", tmp_path / "nowhere")
    assert told.code == 1
    assert [row[0] for row in told.there.values()] == ["ok", "ok", "skipped"]


# Another machine, and all is well


@pytest.mark.slow
def test_all_is_well_without_keys():
    with office() as peer:
        told = examine(peer.address)
    assert told.code == 0, told.text
    assert list(told.there) == CHECKS_OF_A_DOCTOR
    assert {row[0] for row in told.there.values()} == {"ok"}
    assert re.search(r"bit/s there, .*bit/s back", told.there["bandwidth"][1])


@pytest.mark.slow
def test_all_is_well_with_keys(run):
    with office(2, Keys.find(run, 2)) as peer:
        told = examine(peer.address, "--keys", run, "--rank", 1)
    assert told.code == 0, told.text
    assert list(told.there) == CHECKS_OF_A_DOCTOR
    assert {row[0] for row in told.there.values()} == {"ok"}
    assert "TLSv1.3, it shows the certificate of node 2" in told.there["keys"][1]


@pytest.mark.cases(test=1)
@pytest.mark.slow
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "keys"])
def test_two_processes_and_a_pipe(run, secured):
    ours, theirs = (["--keys", run, "--rank", 1], ["--keys", run, "--rank", 0]) if secured else ([], [])
    with listening(*theirs, "--host", "127.0.0.1") as address:
        done = warm.run(["-m", "flockstep", "doctor", address, "--quick", *map(str, ours)], timeout=300)
    told = Told(done.returncode, done.stdout)
    assert told.code == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    assert list(told.there) == CHECKS_OF_A_DOCTOR
    assert {row[0] for row in told.there.values()} == {"ok"}


@pytest.mark.thorough
def test_without_keys_for_others_only_when_told_and_with_a_warning():
    if lookups.outward() == LOOPBACK:
        pytest.skip("this machine has no address but loopback")
    with listening("--insecure") as address:
        assert address.startswith(f"{lookups.outward()}:")
        closed, told = examine(address), examine(address, "--insecure")
    assert closed.code == told.code == 0, closed.text + told.text
    assert "without keys this side does not listen on" in closed.there["both ways"][1]
    mark, seen, fix = told.there["both ways"]
    assert mark == "warning"
    assert "it reaches this machine at" in seen
    assert "who reaches it can read and change the model" in seen
    assert "--keys DIR" in fix


@pytest.mark.slow
def test_the_newer_kind_of_address():
    try:
        peer = ProbeServer(0, LIMITS, ListenOn("::1"))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with peer:
        told = examine(peer.address)
    assert told.code == 0, told.text
    assert f"From here to {peer.address}" in told.sections
    assert {row[0] for row in told.there.values()} == {"ok"}


@pytest.mark.slow
def test_several_at_once():
    with office() as one, office() as other:
        told = examine(one.address, other.address)
    assert told.code == 0, told.text
    assert sum(title.startswith("From here to ") for title in told.sections) == 2


@pytest.fixture
def training():
    house = open_endpoint(b"another run of 16"[:16], 3, 4, LIMITS, ListenOn())
    yield house.box.members.me.address
    house.close()


def test_a_node_in_training_is_asked_about_itself_and_no_more(training):
    told = examine(training)
    assert told.code == 0, told.text
    assert list(told.there) == CHECKS_OF_A_DOCTOR
    assert "node 3 of 4 in training" in told.there["mailbox"][1]
    for check in ("bandwidth", "both ways"):
        mark, seen, _ = told.there[check]
        assert mark == "skipped"
        assert "this is a training node; run `flockstep doctor --listen` there" in seen


# Another machine, and something is wrong


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_dead_port():
    port = free_port()
    examine(f"127.0.0.1:{port}").fails(
        "connection", f"nothing listens at 127.0.0.1:{port}", f"--host 127.0.0.1 --port {port}"
    )


def test_a_name_nobody_has():
    examine("no-such-machine.invalid:29500").fails("name", "no-such-machine.invalid has no address", "/etc/hosts")


def test_keys_here_only(run):
    with office() as peer:
        told = examine(peer.address, "--keys", run)
    told.fails("keys", f"this side has keys, and {peer.address} has none", "leave --keys away here")


def test_keys_there_only(run):
    with office(1, Keys.find(run, 1)) as peer:
        told = examine(peer.address)
    told.fails("keys", f"node 1 at {peer.address} has keys, and this side has none", "--keys DIR --rank R")


@pytest.mark.slow
def test_keys_of_another_authority(run, tmp_path):
    keys.create(tmp_path / "foreign", 3)
    with office(1, Keys.find(tmp_path / "foreign", 1)) as peer:
        told = examine(peer.address, "--keys", run)
    told.fails("keys", "node 1 shows a certificate that this side's authority did not sign", "make keys once")


def test_its_certificate_has_ended(tmp_path, monkeypatch):
    expired(tmp_path, monkeypatch)
    old = Keys(tmp_path / "node-0001", 1)
    keys.create(tmp_path, 3)
    with office(1, old) as peer:
        told = examine(peer.address, "--keys", tmp_path, "--rank", 2)
    told.fails("keys", "the certificate of node 1 ended on", "`flockstep keys create`")


def test_ours_has_ended_and_only_the_other_side_knows(tmp_path, monkeypatch):
    expired(tmp_path, monkeypatch)
    keys.create(tmp_path, 3)
    with office(2, Keys.find(tmp_path, 2)) as peer:
        monkeypatch.setattr(keys, "_now", lambda: datetime.now(UTC) - timedelta(days=30))
        told = examine(peer.address, "--keys", tmp_path, "--rank", 1)
    told.fails("keys", "it refuses the certificate of node 1, this side's: certificate_expired", "`date`")


def test_both_with_the_keys_of_one_node(run):
    with office(1, Keys.find(run, 1)) as peer:
        told = examine(peer.address, "--keys", run, "--rank", 1)
    told.fails("keys", "both sides use the keys of node 1", "--rank")


class Garbage(socketserver.BaseRequestHandler):
    """Says something of its own, reads a little, and hangs up."""

    words = b"220 mail.example.org ESMTP\r\n"

    def handle(self):
        self.request.sendall(self.words)
        self.request.recv(4096)


class Web(Garbage):
    words = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


class Liar(Garbage):
    words = b'HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n{"protocol": 1e999}'


class Deep(Garbage):
    words = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + 100000 * b"["


class Silent(Garbage):
    def handle(self):
        self.server.over.wait()  # type: ignore[attr-defined]


@contextmanager
def something_else(handler):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.over = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.over.set()  # type: ignore[attr-defined]
            server.shutdown()
            thread.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "keys"])
@pytest.mark.parametrize("handler", [Garbage, Web, Liar, Deep])
@pytest.mark.cases(test=3)
@pytest.mark.slow
def test_no_mailbox_at_all(run, handler, secured, monkeypatch):
    # Some hang up in the middle of it, which is not what this is about.
    monkeypatch.setattr(socketserver.BaseServer, "handle_error", lambda *_: None)
    with something_else(handler) as address:
        told = examine(address, *(["--keys", run] if secured else []))
    told.fails("keys", f"{address} is not a Flockstep node", "flockstep doctor --listen")


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "keys"])
@pytest.mark.slow
def test_somebody_who_says_nothing(run, secured):
    with something_else(Silent) as address:
        told = examine(address, "--timeout", "3s", *(["--keys", run] if secured else []))
    told.fails("keys", f"{address} takes connections and says nothing", "whether the node hangs")


@pytest.mark.slow
def test_another_version_is_told_and_the_rest_is_measured(monkeypatch):
    monkeypatch.setattr(request_handler, "version", lambda name: "9.9.9\x1b[31m")
    with office() as peer:
        told = examine(peer.address)
    assert told.code == 1
    assert list(told.there) == CHECKS_OF_A_DOCTOR
    mark, seen, fix = told.there["versions"]
    assert mark == "FAILED"
    assert seen.startswith("flockstep 9.9.9?[31m there, ")
    assert fix.startswith("pip install flockstep==")
    assert [row[0] for row in told.there.values()].count("ok") == len(CHECKS_OF_A_DOCTOR) - 1


def test_another_protocol_ends_it(monkeypatch):
    monkeypatch.setattr(request_handler, "VERSION", 99)
    with office() as peer:
        examine(peer.address).fails("versions", "it speaks version 99 of the protocol", "on both sides")


@pytest.mark.parametrize(("ahead", "words"), [(100, "1 min 40 s ahead of ours"), (-100, "behind ours")])
@pytest.mark.slow
def test_a_clock_that_is_off_is_a_warning(monkeypatch, ahead, words):
    class Clock:
        time = staticmethod(lambda: datetime.now(UTC).timestamp() + ahead)

    monkeypatch.setattr(request_handler, "time", Clock)
    with office() as peer:
        told = examine(peer.address)
    assert told.code == 0, told.text
    mark, seen, fix = told.there["clock"]
    assert (mark, "logs" in seen, "set-ntp" in fix) == ("warning", True, True)
    assert words in seen or "1 min 39 s" in seen


@pytest.mark.parametrize("error", [Refused("something else answers"), ConnectionResetError("it hung up")])
def test_it_ends_in_the_middle(monkeypatch, error):
    answers = []

    def once(*arguments):
        if answers:
            raise error
        answers.append(ask_identity(*arguments))
        return answers[0]

    monkeypatch.setattr(identity, "ask_identity", once)
    with office() as peer:
        examine(peer.address).fails(
            "clock", f"it answered 1 of 3 times, and then no more: {error}", "whether it has ended"
        )


@pytest.mark.slow
def test_it_cannot_reach_us(monkeypatch):
    monkeypatch.setattr("flockstep.backends.real.doctor.probe_server.ask_identity", refuse)
    with office() as peer:
        told = examine(peer.address)
    told.fails("both ways", "it cannot reach this machine at 127.0.0.1:", "sudo ufw allow PORT/tcp")
    assert "no route to host" in told.there["both ways"][1]


def refuse(*_):
    raise OSError("no route to host")


@pytest.mark.slow
def test_an_address_this_machine_has_not(run):
    with office(1, Keys.find(run, 1)) as peer:
        told = examine(peer.address, "--keys", run, "--host", "203.0.113.77")
    told.fails("both ways", "cannot listen on 203.0.113.77", "give --host an address of this machine")


@pytest.mark.slow
def test_without_keys_it_does_not_listen_for_others():
    with office() as peer:
        told = examine(peer.address, "--host", "203.0.113.77")
    assert told.code == 0, told.text
    mark, seen, fix = told.there["both ways"]
    assert mark == "warning"
    assert "without keys this side does not listen on 203.0.113.77" in seen
    assert "--insecure" in fix
    assert told.there["bandwidth"][0] == "ok"


# Asking for it


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["first.local"], "HOST:PORT must be such as first.local:29500"),
        (["first.local:99999"], "HOST:PORT must be such as"),
        (["a b:1"], "HOST:PORT must be such as"),
        (["--timeout", "soon"], "--timeout must be a time such as"),
        (["--timeout", "0s"], "--timeout must be positive"),
        (["--rank", "1"], "give --keys DIR as well"),
        (["--host", "0.0.0.0"], "0.0.0.0 leads nowhere"),
        (["--listen", "a:1"], "--listen waits for others to call"),
        (
            ["--listen", "--host", "203.0.113.77"],
            "a mailbox without keys listens on loopback only, not on 203.0.113.77",
        ),
        (["--listen", "--keys", "nowhere"], "there is no folder nowhere with the keys of node 0"),
        (["--port", "-1"], "--port"),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    told = examine(*arguments)
    assert told.code == 2
    assert words in told.text


def test_a_place_to_listen_that_is_taken():
    with office() as peer:
        told = examine("--listen", "--port", peer.address.rpartition(":")[2])
    assert told.code == 1
    assert told.text.startswith(f"cannot listen on {peer.address}: ")


def test_the_help_teaches():
    told = examine("--help")
    assert told.code == 0
    assert "flockstep doctor --listen --keys keys --rank 0" in told.text


def test_a_doctor_sends_so_much_and_no_more():
    with office(0) as one, office(1) as other:
        other.meet(0, one.address, one.box.members.me.incarnation)
        with pytest.raises(Exception, match="a doctor sends at most 64000000 bytes at once"):
            other.pull(0, 64_000_001)


# Over a slow link


@pytest.fixture
def lab():
    """Skips, with the reason, where this machine cannot build one."""
    try:
        with Lab(nodes=2, rate="50 Mbit/s") as built:
            yield built
    except Missing as reason:
        pytest.skip(f"no slow links here: {reason}")


@pytest.mark.thorough
def test_the_bandwidth_of_a_slow_link(lab, run):
    first, second = lab.nodes
    command = [FLOCKSTEP, "doctor", "--keys", str(run)]
    listen = [*command, "--rank", "0", "--listen", "--host", first.address, "--port", "29700"]
    listener = first.start(listen, stdout=subprocess.PIPE)
    assert b"A doctor listens at " in listener.stdout.readline()
    visitor = second.start([*command, "--rank", "1", f"{first.address}:29700"], stdout=subprocess.PIPE)
    out, _ = visitor.communicate(timeout=300)
    listener.stdout.close()
    told = Told(visitor.returncode, out.decode())
    assert told.code == 0, told.text
    seen = told.there["bandwidth"][1]
    rates = re.fullmatch(r"([\d.]+ [kM]bit/s) there, ([\d.]+ [kM]bit/s) back", seen)
    assert rates, seen
    # A busy machine may be slower than the link, and never faster.
    assert all(0 < units.bytes_per_second(rate) < units.bytes_per_second("60 Mbit/s") for rate in rates.groups()), seen
    assert told.there["both ways"][1].startswith(f"it reaches this machine at {second.address}:")
