"""Ctrl-C at a bad moment."""

import io
import os
import signal
import sys

import pytest

from flockstep.cli.support.stopping import Stop

SAID = "Ctrl-C: stopping and saving; once more stops at once."


class InTheMiddle(io.FileIO):
    """Ctrl-C comes whenever something is written."""

    def write(self, data):
        signal.raise_signal(signal.SIGINT)
        return super().write(data)


def test_while_something_is_being_written(monkeypatch):
    reading, writing = os.pipe()
    with io.TextIOWrapper(io.BufferedWriter(InTheMiddle(writing, "w"))) as file, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", file)
        with Stop() as stop:
            file.write("a bar\n")
            file.flush()
            assert stop.asked
    with os.fdopen(reading) as found:
        assert found.read() == f"{SAID}\na bar\n"


def test_where_standard_error_is_no_file(monkeypatch):
    caught = io.StringIO()
    monkeypatch.setattr(sys, "stderr", caught)
    with Stop() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert SAID in caught.getvalue()
