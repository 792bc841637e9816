"""Words about rounds, as bytes and back, and bytes that are none."""

import json
import random

import pytest

from flockstep.backends.real.rounds.council.words import (
    LONGEST_WORD,
    Accepted,
    Attempt,
    Commit,
    Key,
    Knock,
    Lead,
    NewView,
    Open,
    Propose,
    Refused,
    State,
    Status,
    Sync,
    View,
    Word,
)

KEY, OTHER, ATTEMPT = Key("model", 3), Key("fragment 1", 0), Attempt(1002, 7)
VIEW = View(
    1002,
    2,
    {0: 5, 2: 1 << 62, 3: 0},
    frozenset({3}),
    {2: {"model": 3, "": 0}},
    {2: 1002},
    {KEY: ATTEMPT, OTHER: Attempt(1, 1)},
    frozenset({1, 4}),
)
WORDS = [
    Status(2, {}),
    Status(2, {KEY: None, OTHER: ATTEMPT}, (ATTEMPT, Attempt(0, 0)), left=True),
    Lead(3),
    Open(KEY, ATTEMPT, (0, 2, 3)),
    Commit(OTHER, ATTEMPT),
    Sync(5, VIEW),
    State(5, {KEY: ATTEMPT}, {OTHER: ATTEMPT}, left=True, empty=True, accepted=VIEW, accepted_in=4),
    State(5, {}, {}),
    Propose(6, VIEW),
    Accepted(6),
    Refused(7),
    NewView(VIEW),
    NewView(View(0, 0, {})),
    Knock(),
]


def test_every_word_is_tried():
    assert {type(word).__name__ for word in WORDS} == Word.kinds.keys()


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_a_word_arrives_as_it_was(word):
    again = Word.read(word.to_json())
    assert again == word
    assert again.to_json() == word.to_json()


def mutated(draw, data):
    """Bytes with some flipped, cut out, doubled or replaced."""
    spoilt = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        a, b = sorted(draw.randrange(len(spoilt) + 1) for _ in range(2))
        match draw.randrange(4):
            case 0 if spoilt:
                spoilt[draw.randrange(len(spoilt))] ^= 1 << draw.randrange(8)
            case 1:
                del spoilt[a:b]
            case 2:
                spoilt[a:a] = spoilt[a:b]
            case _:
                spoilt[a:b] = draw.choice(
                    (b"null", b"-1", b"1e9", b"[]", b"{}", b'"x"', b"true", b"9" * 30, b"[[", b"NaN")
                )
    return bytes(spoilt)


def leaves(thing, path=()):
    """Where in a JSON value something stands."""
    yield path
    children = enumerate(thing) if isinstance(thing, list) else thing.items() if isinstance(thing, dict) else ()
    for place, child in children:
        yield from leaves(child, (*path, place))


def with_another(draw, data):
    """A word with one of its parts replaced."""
    thing = json.loads(data)
    *path, last = draw.choice([path for path in leaves(thing) if path])
    parent = thing
    for place in path:
        parent = parent[place]
    parent[last] = draw.choice((None, -1, 1.5, 1 << 64, True, "", "x", [], {}, [[]], [None], [[1, 2, 3]], {"epoch": 1}))
    return json.dumps(thing).encode()


def read_or_refuse(data):
    """Whether bytes are a word; what is one can be said again."""
    try:
        word = Word.read(data)
    except ValueError:
        return False
    assert Word.read(word.to_json()) == word
    return True


def test_what_is_no_word_is_refused_and_raises_nothing_else():
    draw, refused = random.Random(1), 0
    for spoil in (mutated, with_another):
        for _ in range(2000):
            refused += not read_or_refuse(spoil(draw, draw.choice(WORDS).to_json()))
    for _ in range(500):
        refused += not read_or_refuse(draw.randbytes(draw.randrange(60)))
    assert refused > 2500


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'["Knock"]',
        b'["Knock", {}, {}]',
        b'["Word", {}]',
        b'[["Knock"], {}]',
        b'["Knock", []]x',
        b'["Lead", {"epoch": 1, "more": 1}]',
        b'["Lead", {}]',
        b'["Lead", {"epoch": -1}]',
        b'["Lead", {"epoch": true}]',
        b'["Lead", {"epoch": 1.0}]',
        b'["Lead", {"epoch": 9223372036854775808}]',
        b'["Lead", {"epoch": ' + b"9" * 5000 + b"}]",
        b'["Commit", {"key": [3, "model"], "attempt": [1, 1]}]',
        b'["Commit", {"key": ["' + b"x" * 1001 + b'", 1], "attempt": [1, 1]}]',
        b"[" * 100_000,
        b'["Knock", {}]' + b" " * LONGEST_WORD,
    ],
    ids=lambda data: data[:40].decode(),
)
def test_what_is_no_word_is_refused(data):
    with pytest.raises(ValueError, match="word about rounds") as caught:
        Word.read(data)
    # What a stranger sends is not repeated to whoever reads the log.
    assert len(str(caught.value)) < 200


def test_a_view_of_ten_thousand_nodes_is_a_word():
    members = dict.fromkeys(range(10_000), 1 << 60)
    view = View(1, 0, members, firsts={rank: {"model": 3} for rank in members}, let_in=dict.fromkeys(members, 1002))
    data = NewView(view).to_json()
    assert len(data) < LONGEST_WORD
    assert Word.read(data) == NewView(view)
