"""One line about a node: there and back, and what is none; a signature under it, and what is none."""

import base64
import shutil

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hostile import RUN
from hypothesis import given
from hypothesis import strategies as st

from flockstep.backends.real.membership.member_line import Member
from flockstep.backends.real.security.keys import Keys, create, home_of, read
from flockstep.backends.real.security.line_signatures import LineSignatures

OTHER = bytes(16)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
TEXT = st.text(alphabet=LETTERS)
LINES = st.builds(
    Member,
    rank=st.integers(0, 2**20 - 1),
    address=st.builds(
        "{}:{}".format,
        st.text(alphabet="abcXYZ019_.:[]-", min_size=1, max_size=255),
        st.integers(1, 2**16 - 1),
    ),
    incarnation=st.integers(0, 2**64 - 1),
    left=st.booleans(),
)
PROOFS = st.one_of(
    st.just(("", "")),
    st.tuples(
        st.text(alphabet=LETTERS, min_size=86, max_size=86),
        st.one_of(st.just(""), st.text(alphabet=LETTERS, min_size=1, max_size=1024)),
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    create(folder / "run", 3)
    create(folder / "foreign", 3)
    return folder


@pytest.fixture(scope="module")
def signer(folder):
    return lambda rank, run=RUN, whose="run": LineSignatures(Keys.find(folder / whose, rank), run)


@given(LINES, PROOFS)
@pytest.mark.slow
def test_any_line_there_and_back(member, proof):
    signature, certificate = proof
    line = Member(member.rank, member.address, member.incarnation, member.left, signature, certificate)
    assert Member.read(str(line)) == line
    short = Member.read(line.short)
    assert (short.statement, short.signature, short.certificate) == (line.statement, signature, "")
    assert str(line).isascii()
    assert "," not in str(line)
    assert len(str(line)) <= 1500


@given(st.one_of(st.text(), st.builds("{};{}".format, LINES, st.text()), st.builds("{}{}".format, LINES, st.text())))
@pytest.mark.slow
def test_junk_is_refused_with_a_reason_or_is_a_line(text):
    try:
        line = Member.read(text)
    except ValueError as error:
        assert str(error).startswith("not a line about a node: ")
    else:
        assert Member.read(str(line)) == line


@pytest.mark.parametrize(
    "proof",
    [
        *(";", ";;", ";" + "A" * 85, ";" + "A" * 87, ";" + "+" * 86, f";{'A' * 86};", f";{'A' * 86};{'A' * 1025}"),
        *(f";{'A' * 86};=", f";{'A' * 86};AA;AA", f";;{'A' * 100}", f";{'A' * 86}\n", f";{'é' * 86}"),
    ],
)
def test_a_proof_that_is_not_one(proof):
    Member.read("1=h:1/1")
    with pytest.raises(ValueError, match="not a line about a node"):
        Member.read("1=h:1/1" + proof)


def test_what_a_node_signs_everyone_of_its_run_can_verify(signer):
    one, other = signer(1), signer(2)
    signature = one.sign("1=h:1/1")
    assert other.certificate_of(1, "1=h:1/1", signature, "") is None
    assert other.certificate_of(1, "1=h:1/1", signature, one.certificate) == one.certificate
    # Seen once is enough.
    assert other.certificate_of(1, "1=h:1/2/left", one.sign("1=h:1/2/left"), "") == one.certificate
    assert (len(signature), len(one.certificate) <= 800) == (86, True)


def test_what_it_has_not_signed_nobody_believes(signer):
    one, two, other = signer(1), signer(2), signer(0)
    said = "1=h:1/1"
    good = (one.sign(said), one.certificate)
    assert other.certificate_of(1, said, *good) == one.certificate
    for rank, statement, signature, certificate in (
        (1, "1=h:1/2", *good),
        (1, "1=h:1/1/left", *good),
        (2, said, *good),
        (1, said, good[0], two.certificate),
        (1, said, two.sign(said), two.certificate),
        (1, said, two.sign(said), one.certificate),
        (1, said, two.sign(said), ""),
        (1, said, signer(1, OTHER).sign(said), one.certificate),
        (1, said, signer(1, whose="foreign").sign(said), signer(1, whose="foreign").certificate),
        (1, said, signer(1, whose="foreign").sign(said), ""),
        (1, said, "A" * 86, one.certificate),
        (1, said, "_" * 86, one.certificate),
    ):
        assert other.certificate_of(rank, statement, signature, certificate) is None, (rank, statement, certificate)
    assert other.certificate_of(1, said, good[0], "") == one.certificate


def test_the_authoritys_own_certificate_is_no_nodes(signer, folder):
    data = read(home_of(folder / "run", 1) / "ca.pem").public_bytes(Encoding.DER)
    text = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    assert signer(0).certificate_of(1, "1=h:1/1", signer(1).sign("1=h:1/1"), text) is None


def test_a_node_with_a_new_certificate_is_believed_with_that(signer, folder, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(folder / "run", again)
    shutil.rmtree(home_of(again, 1))
    create(again, 3)
    old, new, other = signer(1), LineSignatures(Keys.find(again, 1), RUN), signer(0)
    assert old.certificate != new.certificate
    assert other.certificate_of(1, "1=h:1/1", old.sign("1=h:1/1"), old.certificate) == old.certificate
    assert other.certificate_of(1, "1=h:1/2", new.sign("1=h:1/2"), new.certificate) == new.certificate
    assert other.certificate_of(1, "1=h:1/3", new.sign("1=h:1/3"), "") == new.certificate


@given(st.text(), TEXT, TEXT)
@pytest.mark.slow
def test_junk_is_no_proof(signer, statement, signature, certificate):
    assert signer(0).certificate_of(1, statement, signature, certificate) is None


@given(st.data())
@pytest.mark.slow
def test_a_damaged_certificate_is_no_proof(signer, data):
    one = signer(1)
    where = data.draw(st.integers(0, len(one.certificate) - 1))
    letter = data.draw(st.sampled_from(LETTERS).filter(lambda letter: letter != one.certificate[where]))
    damaged = one.certificate[:where] + letter + one.certificate[where + 1 :]
    assert signer(0).certificate_of(1, "1=h:1/1", one.sign("1=h:1/1"), damaged) is None


def test_a_certificate_whose_serial_number_became_negative_is_no_proof(signer):
    one = signer(1)
    data = bytearray(base64.urlsafe_b64decode(one.certificate + "=" * (-len(one.certificate) % 4)))
    # After the version comes the serial number: a tag, its length, and its first byte, whose highest bit is the sign.
    serial = data.index(bytes.fromhex("a003020102")) + 5
    assert data[serial] == 2
    data[serial + 2] |= 0x80
    damaged = base64.urlsafe_b64encode(bytes(data)).rstrip(b"=").decode()
    assert signer(0).certificate_of(1, "1=h:1/1", one.sign("1=h:1/1"), damaged) is None
