"""What can go wrong in a run.

FlockstepError
├── Deadlock     nodes wait for something that can no longer happen
├── LostPeer     a node died, or did not answer in time
│   ├── NodeDied   the process of a node was killed or ended without a word
│   └── LeftOut    the others go on without this node, which comes in again; inside only
├── Mismatch     nodes brought different things to one exchange
├── CodecRange   a vector cannot be coded, or decoded, with confidence
├── Diverged     a loss is no longer a finite number
└── NodeFailed   a node's own program raised; the original is the cause

Bad arguments are plain ValueError and TypeError, at construction (see check.py).
"""

from __future__ import annotations

from typing import Any


class FlockstepError(RuntimeError):
    """An error of a run: says which node, when, and in which exchange it happened.

    Bad arguments are plain ``ValueError`` and ``TypeError``. ``trace`` is the ``Trace`` up to the failure, where the
    backend has one.

    Args:
        message: What happened, in words.
        rank: The node on which it happened. None: unknown.
        time: When, in seconds of the run, virtual or real. None: unknown.
        channel: The channel of the collective it happened in. None: in none.
        round: The round of that channel, from 0. None: in none.

    Example:
        try:
            trace = fs.simulate(fs.LocalSGD(period=8), workload, nodes=4)
        except fs.FlockstepError as error:
            print(error, error.rank, error.time)
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        time: float | None = None,
        channel: str | None = None,
        round: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rank = rank
        self.time = time
        self.channel = channel
        self.round = round
        self.trace: Any = None
        """The Trace up to the failure, where the backend has one."""

    def __str__(self) -> str:
        when = "" if self.time is None else f" at {self.time:.6g} s"
        return f"{type(self).__name__}{when}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (type(self), self.message, self.rank, self.time, self.channel, self.round)
        return _rebuild, arguments, {"__notes__": self.__notes__} if hasattr(self, "__notes__") else None


def _rebuild(
    kind: type[FlockstepError],
    message: str,
    rank: int | None,
    time: float | None,
    channel: str | None,
    round: int | None,
) -> FlockstepError:
    return kind(message, rank=rank, time=time, channel=channel, round=round)


class Deadlock(FlockstepError):
    """Nodes wait for something that can no longer happen; the message says which nodes, and for what.

    It is made as ``FlockstepError`` is.
    """


class LostPeer(FlockstepError):
    """A node died, or did not answer in time.

    It is made as ``FlockstepError`` is.
    """


class LeftOut(LostPeer):
    """In an elastic run, the others have gone on without this node, which begins anew from where they are.

    A user never sees it. It is made as ``FlockstepError`` is.
    """


class NodeDied(LostPeer):
    """The process of a node ended without a word: killed, most likely. Told by whoever started it."""


class Mismatch(FlockstepError):
    """Nodes brought different things to one exchange: strategies, models, or vectors of different shapes or dtypes.

    It is made as ``FlockstepError`` is.
    """


class CodecRange(FlockstepError):
    """A vector cannot be coded, or a message decoded, with confidence.

    Its numbers are not finite or too large, or it is not what the codec expects. It is made as ``FlockstepError`` is.
    """


class Diverged(FlockstepError):
    """A loss, a gradient or a model is no longer finite.

    It is made as ``FlockstepError`` is.
    """


class NodeFailed(FlockstepError):
    """A node's own program raised; the original exception is the cause.

    It is made as ``FlockstepError`` is.
    """


def located(error: Exception, rank: int, time: float) -> FlockstepError:
    """An error that says on which node it happened, and when."""
    if isinstance(error, FlockstepError):
        error.rank = rank if error.rank is None else error.rank
        error.time = time if error.time is None else error.time
        return error
    located = NodeFailed(f"node {rank}: {type(error).__name__}: {error}", rank=rank, time=time)
    located.__cause__ = error
    return located


def lost_server(rank: int, server: int, *, alive: bool, pushes: int, steps: int, patience: int) -> LostPeer:
    """What a worker ends with whose patience is over: so many pushes had no reply, while it took so many steps."""
    advice = (
        "the server lives, but replies later than the timeout: a longer timeout, or fewer or smaller pushes, may help"
        if alive
        else "the server is dead: start it again, or give workers more patience until it is back"
    )
    return LostPeer(
        f"node {rank} has lost the server, node {server}: {pushes} push{'es' * (pushes > 1)} in a row had no "
        f"reply, over {steps} step{'s' * (steps != 1)} of its own (patience is {patience})\n  {advice}",
        rank=rank,
    )


def stuck(
    waiting: list[int], where: str, gone: list[int], *, channel: str | None = None, round: int | None = None
) -> Deadlock:
    """Some nodes wait for others that have returned."""
    message = (
        f"{nodes_named(sorted(waiting))} {'waits' if len(waiting) == 1 else 'wait'} in {where}; "
        f"{nodes_named(sorted(gone))} {'has' if len(gone) == 1 else 'have'} returned."
    )
    return Deadlock(message, channel=channel, round=round)


def unlike(a: int, first: str, b: int, second: str, *, channel: str, round: int) -> Mismatch:
    """Two nodes brought vectors that cannot be averaged."""
    where = f"mean({channel!r}), round {round}"
    message = f"nodes {a} and {b} brought different vectors to {where}: {first} and {second}"
    return Mismatch(message, channel=channel, round=round)


def nodes_named(ranks: list[int]) -> str:
    """``node 3``, ``nodes 0, 2`` or, for many, ``nodes 0, 1, 2, ... (64 of them)``."""
    if len(ranks) == 1:
        return f"node {ranks[0]}"
    if len(ranks) <= 8:
        return "nodes " + ", ".join(map(str, ranks))
    return "nodes " + ", ".join(map(str, ranks[:3])) + f", ... ({len(ranks)} of them)"
