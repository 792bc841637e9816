"""Which of many nodes' errors to tell."""

from __future__ import annotations

from flockstep.errors import Deadlock, FlockstepError, LostPeer, NodeDied, nodes_named


def root_cause(errors: dict[int, FlockstepError], *, deaths_first: bool = False) -> FlockstepError:
    """Of the errors of all nodes the one that explains the rest: a node's own, a death, a deadlock, a lost peer.

    On islands, a death ends torch's own collectives, whose errors are their processes' own: there it comes first.
    """
    own = [error for error in errors.values() if not isinstance(error, LostPeer | Deadlock)]
    deaths = [error for error in errors.values() if isinstance(error, NodeDied)]
    stuck = {rank: error for rank, error in errors.items() if isinstance(error, Deadlock)}
    if own or deaths or not stuck:
        return ((deaths or own if deaths_first else own or deaths) or list(errors.values()))[0]
    # Each node knows only its own wait: those who wait in the same place are told in one sentence.
    first = stuck[min(stuck)]
    alike = sorted(
        rank for rank, error in stuck.items() if (error.channel, error.round) == (first.channel, first.round)
    )
    _, waits, where = first.message.partition(" waits in ")
    if waits and len(alike) > 1:
        first.message = f"{nodes_named(alike)} wait in {where}"
    return first
