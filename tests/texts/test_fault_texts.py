import pytest

import flockstep as fs
from flockstep.texts import fault_texts


def test_stragglers():
    assert fault_texts.stragglers(["3:4x", "0 : 1.5", "12:.5x"]) == {3: 4.0, 0: 1.5, 12: 0.5}
    assert fault_texts.stragglers([]) == {}


def test_crash_and_slowdown():
    assert fault_texts.crash("5@60s") == fs.faults.Crash(node=5, at="60s")
    assert fault_texts.crash(" 5 @ 2 min") == fs.faults.Crash(node=5, at="2 min")
    assert fault_texts.crash("5@60s + 30 s") == fs.faults.Crash(node=5, at="60s", back_after="30 s")
    assert fault_texts.slowdown("3:4x@60s+30s") == fs.faults.Slowdown(node=3, factor=4.0, start="60s", duration="30s")


def test_pause_partition_and_loss():
    assert fault_texts.pause("2@10s+5s") == fs.faults.Pause(node=2, start="10s", duration="5s")
    assert fault_texts.pause(" 12 @ 1 min + 500 ms ") == fs.faults.Pause(node=12, start="1 min", duration="500 ms")
    assert fault_texts.partition("0,1|2,3@10s+5s") == fs.faults.Partition(
        groups=((0, 1), (2, 3)), start="10s", duration="5s"
    )
    assert fault_texts.partition(" 0 , 1 | 12 @0s+5s") == fs.faults.Partition(
        groups=((0, 1), (12,)), start="0s", duration="5s"
    )
    assert fault_texts.partition("0@0s+5s").groups == ((0,),)
    assert fault_texts.drop("0.05") == fs.faults.MessageLoss(share=0.05)
    assert fault_texts.drop(".5 @ 10s+5s") == fs.faults.MessageLoss(share=0.5, start="10s", duration="5s")
    assert fault_texts.drop("1") == fs.faults.MessageLoss(share=1.0)


@pytest.mark.parametrize("text", ["", "2", "2@10s", "2+5s", "@1s+1s", "-2@1s+1s", "2@1s+1s+1s", "a@1s+1s"])
def test_a_pause_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=r"cannot read the pause .*; write 2@10s\+5s for node 2 standing still"):
        fault_texts.pause(text)


@pytest.mark.parametrize(
    "text", ["", "0,1|2", "0,1|2@5s", "|@1s+1s", "0,|1@1s+1s", "0,,1@1s+1s", "0-1@1s+1s", "@1s+1s"]
)
def test_a_partition_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=r"cannot read the partition .*; write 0,1\|2,3@10s\+5s"):
        fault_texts.partition(text)


@pytest.mark.parametrize("text", ["", "some", "-0.1", "0.1@5s", "5%", "0.1+5s"])
def test_a_loss_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=r"cannot read the share of lost messages .*; write 0\.05 for one in twenty"):
        fault_texts.drop(text)


@pytest.mark.parametrize("text", ["", "3", "3x", "3:", "3:x", "-1:2x", "3:-2x", "3:1.2.3x", "a:2x", "3:2y"])
def test_a_straggler_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=r"cannot read the straggler .*; write 3:4x for node 3 being 4 times slower"):
        fault_texts.stragglers([text])


def test_a_straggler_named_twice():
    with pytest.raises(ValueError, match="node 3 is named twice"):
        fault_texts.stragglers(["3:4x", "3:2x"])


def test_other_mistakes():
    with pytest.raises(ValueError, match="cannot read the crash '5'; write 5@60s"):
        fault_texts.crash("5")
    with pytest.raises(ValueError, match=r"Crash\.at: unknown unit 'parsecs'"):
        fault_texts.crash("5@3 parsecs")
    with pytest.raises(ValueError, match=r"Crash\.back_after: unknown unit 'moons'"):
        fault_texts.crash("5@3s+2 moons")
    with pytest.raises(ValueError, match=r"Partition\.groups names node 1 twice"):
        fault_texts.partition("0,1|1@1s+1s")
    with pytest.raises(ValueError, match=r"MessageLoss\.share must be between 0 and 1, got 1\.5"):
        fault_texts.drop("1.5")
    with pytest.raises(ValueError, match="cannot read the slowdown '3:4x@60s'; write 3:4x@60s\\+30s"):
        fault_texts.slowdown("3:4x@60s")
    with pytest.raises(ValueError, match=r"Slowdown\.factor must be positive"):
        fault_texts.slowdown("3:0x@60s+30s")
