"""Means and exchanges among real mailboxes: right to the bit, and begun again after any failure."""

import threading
from itertools import count

import pytest
import torch
from crew import aside, at_frame, expected, in_small_pieces, outcome, vectors

from flockstep.backends.real.rounds.carrier import streams, undertaking
from flockstep.backends.real.rounds.carrier.adder import Adder
from flockstep.backends.real.rounds.carrier.carrier import Abandoned, Unreached
from flockstep.backends.real.rounds.council.words import Attempt, Key
from flockstep.errors import Mismatch
from flockstep.message import NOTHING, Message

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def sizes(n):
    return {0, 1, n - 1, n, n + 1, 97, 10007}


def check(results, given):
    for result in results:
        assert not isinstance(result, BaseException), result
        assert result.dtype == given[0].dtype
        assert result.equal(expected(given))


# Right ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "keys"])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.slow
def test_a_mean_is_that_of_simulator_and_threads_to_the_bit(n, is_secured, crews, run_keys, monkeypatch):
    crew, numbers = crews(n, run_keys[0] if is_secured else None), count(1)
    for is_short in (False, True):
        # First whole, where that is allowed, then in chunks and pieces.
        if is_short:
            in_small_pieces(monkeypatch)
        for dtype in DTYPES:
            for size in sizes(n):
                given = vectors(n, size, dtype, seed=size)
                before = [v.clone() for v in given]
                check(crew.mean(given, number=next(numbers)), given)
                assert all(v.equal(old) for v, old in zip(given, before, strict=True))


# Of the second, one node sums a chunk that goes in small pieces, and the other one that goes in large ones.
@pytest.mark.parametrize(("n", "size"), [(2, 1_000_003), (2, 2_097_151), (3, 1_000_003), (3, 4_000_003)])
def test_long_vectors(n, size, crews):
    crew = crews(n)
    given = vectors(n, size)
    check(crew.mean(given), given)


def test_shapes_and_strides_are_kept(crews):
    crew = crews(2)
    given = [v.view(5, 7).t() for v in vectors(2, 35)]
    for result in crew.mean(given):
        assert result.equal(expected([v.contiguous() for v in given]))
    results = crew.mean([torch.tensor(1.0), torch.tensor(4.0)], number=2)
    assert [result.item() for result in results] == [2.5, 2.5] and results[0].shape == ()


def test_what_is_not_finite(crews):
    nan, inf = float("nan"), float("inf")
    given = [torch.tensor([nan, inf, inf, -0.0, 1e38, 1.0]), torch.tensor([1.0, inf, -inf, -0.0, -3e38, nan])]
    wanted = expected(given)
    for result in crews(2).mean(given):
        assert result.isnan().equal(wanted.isnan())
        # As bits: a zero has a sign.
        assert result[~wanted.isnan()].view(torch.int32).equal(wanted[~wanted.isnan()].view(torch.int32))


def test_sums_are_those_of_mean_of():
    for seed in range(60):
        dtype, n, size = DTYPES[seed % 4], 2 + seed % 5, (1, 3, 64, 1001, 40000)[seed % 5 - seed // 30]
        given = vectors(n, size, dtype, seed)
        out = torch.empty(size, dtype=dtype)
        views = [v.view(torch.uint8).numpy().data for v in (*given, out)]
        Adder(dtype, 0).mean(views[:-1], views[-1])
        assert out.equal(expected(given)), (dtype, n, size)


def test_some_of_the_nodes(crews):
    crew = crews(5)
    given = vectors(3, 4001)
    check(crew.mean(given, ranks=(1, 3, 4)), given)
    given = vectors(2, 4001, seed=1)
    check(crew.mean(given, ranks=(0, 3), number=2), given)
    (alone,) = crew.mean(given[:1], ranks=(2,), number=3)
    assert alone.equal(given[0]) and alone.data_ptr() != given[0].data_ptr()


def test_what_is_held_is_not_written_again(crews):
    crew, held = crews(2), []
    for number in range(1, 6):
        given = vectors(2, 50_000, seed=number)
        held.append((given, crew.mean(given, number=number)))
    for given, results in held:
        check(results, given)


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "keys"])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_an_exchange_gives_each_what_is_for_it(n, is_secured, crews, run_keys, monkeypatch):
    in_small_pieces(monkeypatch)
    crew = crews(n, run_keys[0] if is_secured else None)

    def message(giver, taker):
        return Message.of_bytes(bytes([giver, taker]) * (777 * (giver + taker) % 2500), f"{giver} to {taker}")

    # One more than there are has a place, and is not in.
    given = [[message(i, j) for j in range(n + 1)] for i in range(n)]
    calls = [
        aside(c.exchange, Key("exchange", 1), Attempt(1, 1), tuple(range(n)), given[rank])
        for rank, c in enumerate(crew.carriers)
    ]
    for rank, call in enumerate(calls):
        received = outcome(call)
        assert sorted(received) == list(range(n + 1)) and received[n] is NOTHING
        for giver in range(n):
            wanted = given[giver][rank]
            assert received[giver].to_bytes() == wanted.to_bytes()
            assert (received[giver].codec, received[giver].shape) == (wanted.codec, wanted.shape)


# Who comes when -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_that_begins_early_waits_with_all_it_sends(crews, monkeypatch):
    crew, blocked = crews(2), threading.Event()
    given = vectors(2, 6_000_000)
    push = streams.Outgoing.push

    def watched(self):
        sent = push(self)
        if not sent:
            blocked.set()
        return sent

    monkeypatch.setattr(streams.Outgoing, "push", watched)
    early = aside(crew.carriers[0].mean, Key("model", 1), Attempt(1, 1), (0, 1), given[0])
    assert blocked.wait(60)
    late = crew.carriers[1].mean(Key("model", 1), Attempt(1, 1), (0, 1), given[1])
    check([outcome(early), late], given)


def test_channels_do_not_wait_for_each_other(crews):
    crew = crews(2)
    given = vectors(2, 1000)
    waits = aside(crew.carriers[0].mean, Key("slow", 1), Attempt(1, 100), (0, 1), given[0])
    for number in range(1, 4):
        check(crew.mean(given, number=number, channel="quick"), given)
    assert not waits.done()
    last = crew.carriers[1].mean(Key("slow", 1), Attempt(1, 100), (0, 1), given[1])
    check([outcome(waits), last], given)


def test_what_belongs_to_a_later_attempt_waits_for_it(crews, monkeypatch):
    crew, met = crews(2), threading.Event()
    given = vectors(2, 5000)
    meet = undertaking.Undertaking._meet

    def watched(self, stream, data):
        meet(self, stream, data)
        met.set()

    monkeypatch.setattr(undertaking.Undertaking, "_meet", watched)
    first = aside(crew.carriers[0].mean, Key("model", 1), Attempt(1, 1), (0, 1), given[0])
    later = aside(crew.carriers[1].mean, Key("model", 1), Attempt(2, 1), (0, 1), given[1])
    assert met.wait(60)
    crew.carriers[0].abandon(Attempt(1, 1), "model")
    assert isinstance(outcome(first), Abandoned)
    again = crew.carriers[0].mean(Key("model", 1), Attempt(2, 1), (0, 1), given[0])
    check([again, outcome(later)], given)


# Failures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.slow
def test_abandoned_at_any_moment_the_next_attempt_is_right(n, crews, monkeypatch):
    crew, numbers = crews(n), count(1, 2)
    in_small_pieces(monkeypatch)
    given = vectors(n, 1300)
    for moment in count():
        number = next(numbers)
        with monkeypatch.context() as patch:
            reached = at_frame(patch, 0, moment, lambda number=number: crew.abandon(number))
            results = crew.mean(given, number=number)
        if not reached:
            assert moment > 3 * (n - 1)
            check(results, given)
            return
        assert isinstance(results[0], Abandoned)
        for result in results:
            if isinstance(result, torch.Tensor):
                check([result], given)
            else:
                assert isinstance(result, Abandoned | Unreached), result
        check(crew.mean(given, number=number + 1), given)


def test_abandoned_while_it_waits_and_before_it_begins(crews):
    crew = crews(2)
    given = vectors(2, 1000)
    waits = aside(crew.carriers[0].mean, Key("model", 1), Attempt(1, 1), (0, 1), given[0])
    crew.carriers[0].abandon(Attempt(1, 2), "model")
    crew.carriers[0].abandon(Attempt(1, 1), "another")
    crew.carriers[0].abandon(Attempt(1, 1), "model")
    assert isinstance(outcome(waits), Abandoned)
    with pytest.raises(Abandoned):
        crew.carriers[1].abandon(Attempt(1, 1), "model")
        crew.carriers[1].mean(Key("model", 1), Attempt(1, 1), (0, 1), given[1])
    check(crew.mean(given, number=3), given)


def test_the_next_attempt_waits_for_one_that_has_yet_to_notice_that_it_is_abandoned(crews, monkeypatch):
    crew, key = crews(2), Key("model", 1)
    given = vectors(2, 1000)
    begun, noticed, may_leave = threading.Event(), threading.Event(), threading.Event()
    run, end = undertaking.Undertaking.run, undertaking.Undertaking.end

    def told(self):
        begun.set()
        run(self)

    def slow_to_leave(self, *, well):
        if self.attempt == Attempt(1, 1):
            noticed.set()
            assert may_leave.wait(60)
        end(self, well=well)

    monkeypatch.setattr(undertaking.Undertaking, "run", told)
    monkeypatch.setattr(undertaking.Undertaking, "end", slow_to_leave)
    first = aside(crew.carriers[0].mean, key, Attempt(1, 1), (0, 1), given[0])
    # Abandoned before, it would never have been under way.
    assert begun.wait(60)
    crew.carriers[0].abandon(Attempt(1, 1), "model")
    assert noticed.wait(60)
    later = [aside(crew.carriers[r].mean, key, Attempt(2, 1), (0, 1), given[r]) for r in range(2)]
    # One more that is abandoned while it waits itself.
    never = aside(crew.carriers[0].mean, key, Attempt(1, 2), (0, 1), given[0])
    crew.carriers[0].abandon(Attempt(1, 2), "model")
    assert isinstance(outcome(never), Abandoned)
    may_leave.set()
    assert isinstance(outcome(first), Abandoned)
    check([outcome(call) for call in later], given)


def test_a_finished_attempt_that_is_abandoned_leaves_nothing_for_the_next(crews):
    crew = crews(2)
    given = vectors(2, 1000)
    for number in (1, 3, 5):
        check(crew.mean(given, number=number), given)
        crew.abandon(number)
        check(crew.mean(given, number=number + 1), given)


@pytest.mark.parametrize("moment", [0, 1, 3, 5])
def test_one_that_ends_in_the_middle_is_unreached_at_once(moment, crews, monkeypatch):
    crew = crews(3)
    in_small_pieces(monkeypatch)
    given = vectors(3, 5000)
    ended = []
    with monkeypatch.context() as patch:
        reached = at_frame(patch, 2, moment, lambda: ended.append(aside(crew.ends[2].close)))
        results = crew.mean(given)
    assert reached and outcome(ended[0]) is None
    assert all(isinstance(result, Unreached | Abandoned) for result in results), results
    assert isinstance(results[0], Unreached) or isinstance(results[1], Unreached)
    check(crew.mean(given[:2], ranks=(0, 1), number=2), given[:2])


def test_one_that_is_not_there_is_unreached(crews):
    crew = crews(2)
    crew.ends[1].close()
    with pytest.raises(Unreached) as caught:
        crew.carriers[0].mean(Key("model", 1), Attempt(1, 1), (0, 1), torch.ones(3))
    assert caught.value.peer == 1


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("odd", [0, -1])
def test_different_vectors_are_a_mismatch_on_all(n, odd, crews, monkeypatch):
    crew, numbers = crews(n), count(1)
    in_small_pieces(monkeypatch)
    for other in (torch.zeros(1201), torch.zeros(1200, 1), torch.zeros(1200, dtype=torch.float64), torch.zeros(0)):
        given = vectors(n, 1200)
        given[odd] = other
        for error in crew.mean(given, number=next(numbers)):
            assert isinstance(error, Mismatch) and error.channel == "model"
            assert "(1200,) of torch.float32" in str(error) and f"{tuple(other.shape)} of {other.dtype}" in str(error)


def test_a_mean_is_no_exchange(crews):
    crew = crews(2)
    key, attempt, ranks = Key("model", 1), Attempt(1, 1), (0, 1)
    first = aside(crew.carriers[0].mean, key, attempt, ranks, torch.ones(3))
    second = aside(crew.carriers[1].exchange, key, attempt, ranks, [NOTHING, NOTHING])
    assert isinstance(outcome(first), Mismatch) and isinstance(outcome(second), Mismatch)


def test_two_attempts_of_one_channel_are_a_mistake(crews):
    crew = crews(2)
    waits = aside(crew.carriers[0].mean, Key("model", 1), Attempt(1, 1), (0, 1), torch.ones(3))
    while not crew.carriers[0]._under_way:
        threading.Event().wait(0.001)
    with pytest.raises(RuntimeError, match="under way"):
        crew.carriers[0].mean(Key("model", 2), Attempt(1, 2), (0, 1), torch.ones(3))
    crew.carriers[0].close()
    assert isinstance(outcome(waits), Abandoned)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_vectors_on_a_gpu(crews):
    crew = crews(2)
    given = vectors(2, 300_001)
    for result in crew.mean([v.cuda() for v in given]):
        assert result.is_cuda and result.cpu().equal(expected(given))
