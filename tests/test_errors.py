"""Errors of a run: what they say, and that they survive the way between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from flockstep import errors
from flockstep.errors import CodecRange, Deadlock, Diverged, FlockstepError, LostPeer, Mismatch, NodeFailed

KINDS = [Deadlock, LostPeer, Mismatch, CodecRange, Diverged, NodeFailed]


def test_the_tree_on_top_of_the_file_is_the_tree() -> None:
    drawn = errors.__doc__ or ""
    for kind in KINDS:
        assert f"─ {kind.__name__} " in drawn
        assert issubclass(kind, FlockstepError)
    assert set(FlockstepError.__subclasses__()) >= set(KINDS)
    assert issubclass(FlockstepError, RuntimeError)


def test_an_error_says_its_kind_and_when() -> None:
    assert str(Deadlock("nodes 0, 2 wait", time=3.2)) == "Deadlock at 3.2 s: nodes 0, 2 wait"
    assert str(CodecRange("not finite")) == "CodecRange: not finite"
    assert str(LostPeer("node 1 died", time=0.0)) == "LostPeer at 0 s: node 1 died"


@pytest.mark.parametrize("kind", [FlockstepError, *KINDS])
def test_pickles_and_copies_keep_the_attributes(kind: type[FlockstepError]) -> None:
    error = kind("why", rank=0, time=1.5, channel="model", round=41)
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(back) is kind
        assert (back.message, back.rank, back.time, back.channel, back.round) == ("why", 0, 1.5, "model", 41)
        assert str(back) == str(error)
        assert back.args == error.args


def test_what_is_not_known_is_none() -> None:
    error = pickle.loads(pickle.dumps(Diverged("loss is nan")))
    assert (error.rank, error.time, error.channel, error.round, error.trace) == (None,) * 5


def test_details_are_keywords_only() -> None:
    with pytest.raises(TypeError):
        FlockstepError("why", 3)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "node 3"),
        ([0, 2], "nodes 0, 2"),
        (list(range(8)), "nodes 0, 1, 2, 3, 4, 5, 6, 7"),
        (list(range(64)), "nodes 0, 1, 2, ... (64 of them)"),
    ],
)
def test_nodes_are_named_but_not_all_of_many(ranks: list[int], text: str) -> None:
    assert errors.nodes_named(ranks) == text
