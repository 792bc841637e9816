import pytest

import flockstep as fs
from flockstep.cli import misfortune


def test_stragglers():
    assert misfortune.stragglers(["3:4x", "0 : 1.5", "12:.5x"]) == {3: 4.0, 0: 1.5, 12: 0.5}
    assert misfortune.stragglers([]) == {}


def test_crash_and_slowdown():
    assert misfortune.crash("5@60s") == fs.Crash(node=5, at="60s")
    assert misfortune.crash(" 5 @ 2 min") == fs.Crash(node=5, at="2 min")
    assert misfortune.slowdown("3:4x@60s+30s") == fs.Slowdown(node=3, factor=4.0, start="60s", duration="30s")


@pytest.mark.parametrize("text", ["", "3", "3x", "3:", "3:x", "-1:2x", "3:-2x", "3:1.2.3x", "a:2x", "3:2y"])
def test_a_straggler_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=r"cannot read the straggler .*; write 3:4x for node 3 being 4 times slower"):
        misfortune.stragglers([text])


def test_a_straggler_named_twice():
    with pytest.raises(ValueError, match="node 3 is named twice"):
        misfortune.stragglers(["3:4x", "3:2x"])


def test_other_mistakes():
    with pytest.raises(ValueError, match="cannot read the crash '5'; write 5@60s"):
        misfortune.crash("5")
    with pytest.raises(ValueError, match=r"Crash\.at: unknown unit 'parsecs'"):
        misfortune.crash("5@3 parsecs")
    with pytest.raises(ValueError, match="cannot read the slowdown '3:4x@60s'; write 3:4x@60s\\+30s"):
        misfortune.slowdown("3:4x@60s")
    with pytest.raises(ValueError, match=r"Slowdown\.factor must be positive"):
        misfortune.slowdown("3:0x@60s+30s")
