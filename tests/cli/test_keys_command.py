"""``flockstep keys``: making keys, and looking at them."""

from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from flockstep.backends.real.security import keys
from flockstep.cli import app


def invoke(*arguments):
    result = CliRunner().invoke(app, ["keys", *map(str, arguments)], env={"COLUMNS": "200", "TERM": "dumb"})
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("command", [[], ["create"]])
def test_the_help_teaches_what_to_copy_and_how_to_use_it(command):
    code, words = invoke(*command, "--help")
    assert code == 0
    assert "--nodes 4" in words
    assert "node-0000 to the machine of node 0" in words
    assert "authority to none" in words
    assert "flockstep run --keys" in words
    assert "FLOCKSTEP_KEYS=" in words


def test_the_program_lists_it():
    assert "Make and look at the keys" in " ".join(CliRunner().invoke(app, ["--help"]).output.split())


@pytest.mark.parametrize(("size", "named"), [(1, "node 0"), (2, "nodes 0, 1"), (5, "nodes 0, 1, 2, 3, 4")])
def test_create_then_show(tmp_path, size, named):
    folder = tmp_path / "keys"
    code, words = invoke("create", folder, "--nodes", size, "--days", 30)
    assert code == 0
    assert f"Made keys of {named} in {folder}." in words
    assert f"{folder / 'authority'} to none" in words
    code, words = invoke("show", folder)
    assert code == 0
    ends = keys.Keys.find(folder, 0).expires
    assert words.count(f"{ends:%Y-%m-%d %H:%M} UTC 29 ok") == size
    assert "authority" in words


def test_create_again_adds_what_is_missing(tmp_path):
    invoke("create", tmp_path, "--nodes", 2)
    assert f"Made keys of node 2 in {tmp_path}." in invoke("create", tmp_path, "--nodes", 3)[1]
    assert invoke("create", tmp_path, "--nodes", 3)[1].startswith(f"{tmp_path} has keys of all 3 already.")


def test_show_on_a_nodes_own_machine(tmp_path):
    keys.create(tmp_path, 3)
    code, words = invoke("show", tmp_path / "node-0002")
    assert code == 0
    assert "UTC 364 ok" in words
    assert "authority" not in words


def expire(folder, monkeypatch):
    with monkeypatch.context() as clock:
        clock.setattr(keys, "_now", lambda: datetime.now(UTC) - timedelta(days=30))
        keys.create(folder, 2, days=1)


def test_show_says_what_is_over(tmp_path, monkeypatch):
    expire(tmp_path, monkeypatch)
    keys.create(tmp_path, 3)
    code, words = invoke("show", tmp_path)
    assert code == 1
    assert words.count(" -30 ok") == 2
    assert words.count(" 364 ok") == 1
    assert "the certificate of node 0 ended on" in words
    assert "the certificate of node 1 ended on" in words
    assert "the certificate of node 2 ended on" not in words


@pytest.mark.parametrize("name", ["node-0001/node.key", "node-0001/ca.pem", "authority/ca.key"])
def test_show_says_what_is_open_to_others(tmp_path, name):
    keys.create(tmp_path, 2)
    (tmp_path / name).chmod(0o644)
    code, words = invoke("show", tmp_path)
    assert code == 1
    assert words.count("open to others") == 1
    assert f"chmod 600 {tmp_path / name}" in words


@pytest.mark.parametrize("name", ["node-0001/node.pem", "authority/ca.pem"])
def test_show_goes_on_after_a_bad_certificate(tmp_path, name):
    keys.create(tmp_path, 3)
    (tmp_path / name).write_text("nothing")
    code, words = invoke("show", tmp_path)
    assert code == 1
    assert "- - ok" in words
    assert words.count("UTC") == 3
    assert f"{tmp_path / name} is not a certificate" in words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "nowhere"], "there are no keys in nowhere make them with `flockstep keys create nowhere --nodes N`"),
        (["create", "keys", "--nodes", "0"], "nodes must be at least 1, got 0"),
        (["create", "keys", "--nodes", "1", "--days", "0"], "days must be at least 1, got 0"),
        (["create", "keys", "--nodes", "1", "--days", "9999"], "days must be at most 3650, got 9999"),
        (["create", "keys"], "--nodes"),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, said = invoke(*arguments)
    assert code == 2
    assert words in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_said_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    code, said = invoke("create", tmp_path / "file" / "keys", "--nodes", 1)
    assert code == 1
    assert said.startswith("Not a directory: ")
