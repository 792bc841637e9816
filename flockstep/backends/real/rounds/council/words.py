"""What nodes tell each other about views and rounds: a few words, as JSON.

Each may be lost, late, or said twice. No word is longer than 4 MiB, no number above 2**63 - 1, and no channel's name
longer than 1000 characters; a run of ten thousand nodes stays far below the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple

LONGEST_WORD = 4 << 20
_LARGEST_NUMBER = (1 << 63) - 1
_LONGEST_CHANNEL = 1000


class Key(NamedTuple):
    """One mean of the run: the k-th of a channel."""

    channel: str
    round: int

    def __str__(self) -> str:
        return f"mean({self.channel!r}), round {self.round}"


class Attempt(NamedTuple):
    """One try to carry a round out: of this view, and the so-manieth that its leader began."""

    epoch: int
    number: int


@dataclass(frozen=True)
class View:
    """The nodes that take part. Of two views the one with the higher epoch counts."""

    epoch: int
    leader: int
    members: Mapping[int, int]
    """Ranks, and which life of each is meant; 0 of one that has not spoken yet."""
    left: frozenset[int] = frozenset()
    """Members whose programs have returned: they answer, and bring nothing more."""
    firsts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Of who came late: its first round of each channel. Those before are not its own."""
    let_in: Mapping[int, int] = field(default_factory=dict)
    """Of who came late: the epoch of the view by which it was let in."""
    committed: Mapping[Key, Attempt] = field(default_factory=dict)
    """Rounds of the view before that all had the result of, and that some may not have delivered: these count."""
    absent: frozenset[int] = frozenset()
    """Who was in an earlier view and is not in this one."""

    @property
    def active(self) -> list[int]:
        """Members that train."""
        return sorted(rank for rank in self.members if rank not in self.left)

    def is_own(self, rank: int, key: Key) -> bool:
        """Whether a round is one of this node's, and did not begin before it came."""
        return self.firsts.get(rank, {}).get(key.channel, 0) <= key.round

    def needed(self, key: Key) -> tuple[int, ...]:
        """Who must bring something to a round: if nobody is left whose own it was, those who waited to hear of it."""
        is_lost = not any(self.is_own(rank, key) for rank in self.members)
        return tuple(rank for rank in self.active if is_lost or self.is_own(rank, key))

    def has(self, rank: int, life: int) -> bool:
        """Whether this life of a node is a member."""
        return self.members.get(rank) in (0, life)

    def is_after(self, other: View) -> bool:
        """Whether this view counts and the other does not; leaders tell apart those of a run that became two."""
        return (self.epoch, self.leader) > (other.epoch, other.leader)


class Word:
    """One message; its kind is the name of its class."""

    kinds: ClassVar[dict[str, type[Word]]] = {}

    def __init_subclass__(cls) -> None:
        Word.kinds[cls.__name__] = cls

    def to_json(self) -> bytes:
        """As it travels."""
        return json.dumps([type(self).__name__, _plain(self)]).encode()

    @staticmethod
    def read(data: bytes) -> Word:
        """A word from bytes; ValueError where it is none."""
        if len(data) > LONGEST_WORD:
            raise ValueError(f"a word about rounds has at most {LONGEST_WORD} bytes, got {len(data)}")
        try:
            kind, said = json.loads(data)
            word: Word = _whole(Word.kinds[kind], said)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"this is no word about rounds: {type(error).__name__}") from None
        return word


@dataclass(frozen=True)
class Status(Word):
    """Of a member to its leader: the rounds it waits in, and of which of them it has the result."""

    epoch: int
    open: Mapping[Key, Attempt | None]
    failed: tuple[Attempt, ...] = ()
    """Attempts in which this node could not reach another."""
    left: bool = False


@dataclass(frozen=True)
class Lead(Word):
    """Of a leader to its members: it lives, and this is its view."""

    epoch: int


@dataclass(frozen=True)
class Open(Word):
    """Of a leader: carry this round out among these."""

    key: Key
    attempt: Attempt
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Commit(Word):
    """Of a leader: all have the result of this attempt; take it."""

    key: Key
    attempt: Attempt


@dataclass(frozen=True)
class Sync(Word):
    """Of a candidate, who would lead the next view: do nothing more in the last one, and tell what you have."""

    epoch: int
    view: View
    """The last one."""


@dataclass(frozen=True)
class State(Word):
    """The answer, and a promise to hear no candidate with a lower epoch."""

    epoch: int
    open: Mapping[Key, Attempt | None]
    """Rounds this node waits in, with the attempt that it has the result of."""
    delivered: Mapping[Key, Attempt]
    left: bool = False
    empty: bool = False
    """Whether this node has nobody's state yet."""
    accepted: View | None = None
    """The next view that it has agreed to last, if any."""
    accepted_in: int = 0
    """The epoch of the candidate who proposed that."""


@dataclass(frozen=True)
class Propose(Word):
    """Of a candidate whom enough have answered: this be the next view."""

    epoch: int
    view: View


@dataclass(frozen=True)
class Accepted(Word):
    """The answer: agreed."""

    epoch: int


@dataclass(frozen=True)
class Refused(Word):
    """The other answer to a candidate: no, this node has promised itself to one with this epoch."""

    epoch: int


@dataclass(frozen=True)
class NewView(Word):
    """From now on, this is the view."""

    view: View


@dataclass(frozen=True)
class Knock(Word):
    """Of one who wants to be let in."""


def _plain(thing: Any) -> Any:
    """What JSON has words for: a mapping is a list of pairs, since its keys need not be text."""
    if is_dataclass(thing):
        return {name: _plain(value) for name, value in vars(thing).items()}
    if isinstance(thing, Mapping):
        return [[_plain(key), _plain(value)] for key, value in thing.items()]
    if isinstance(thing, frozenset | tuple):
        return [_plain(one) for one in thing]
    return thing


def _whole(cls: Any, said: Any) -> Any:
    """A word or a view from its fields, each read as what it must be."""
    if set(said) != (names := {f.name for f in fields(cls)}):
        raise ValueError(f"{cls.__name__} has the fields {sorted(names)}")
    return cls(**{name: _READ[name](value) for name, value in said.items()})


def _number(said: Any) -> int:
    if type(said) is not int or not 0 <= said <= _LARGEST_NUMBER:
        raise ValueError("a whole number from 0 to 2**63 - 1 was expected")
    return said


def _truth(said: Any) -> bool:
    if type(said) is not bool:
        raise ValueError("true or false was expected")
    return said


def _channel(said: Any) -> str:
    if type(said) is not str or len(said) > _LONGEST_CHANNEL:
        raise ValueError(f"a channel is a text of at most {_LONGEST_CHANNEL} characters")
    return said


def _key(said: Any) -> Key:
    channel, round = said
    return Key(_channel(channel), _number(round))


def _attempt(said: Any) -> Attempt:
    epoch, number = said
    return Attempt(_number(epoch), _number(number))


def _rounds(said: Any) -> dict[Key, Attempt]:
    return {_key(key): _attempt(attempt) for key, attempt in said}


_READ: dict[str, Callable[[Any], Any]] = {
    "epoch": _number,
    "accepted_in": _number,
    "accepted": lambda said: None if said is None else _whole(View, said),
    "absent": lambda said: frozenset(map(_number, said)),
    "leader": _number,
    "left": lambda said: _truth(said) if isinstance(said, bool) else frozenset(map(_number, said)),
    "empty": _truth,
    "members": lambda said: {_number(rank): _number(life) for rank, life in said},
    "firsts": lambda said: {_number(rank): {_channel(c): _number(k) for c, k in rounds} for rank, rounds in said},
    "failed": lambda said: tuple(map(_attempt, said)),
    "let_in": lambda said: {_number(rank): _number(epoch) for rank, epoch in said},
    "ranks": lambda said: tuple(map(_number, said)),
    "key": _key,
    "attempt": _attempt,
    "open": lambda said: {_key(key): None if attempt is None else _attempt(attempt) for key, attempt in said},
    "delivered": _rounds,
    "committed": _rounds,
    "view": lambda said: _whole(View, said),
}
