"""Threads that are kept for the next thing to do."""

import multiprocessing
import threading
from contextvars import ContextVar

import pytest

from flockstep.backends.real import thread_pool

LIMIT = 30.0


@pytest.fixture(autouse=True)
def nobody_idle(monkeypatch):
    monkeypatch.setattr(thread_pool, "_idle", [])


def asked(*calls):
    """Have all of them run at once, and wait for them."""
    done = [threading.Event() for _ in calls]

    def run(call, end):
        call()
        end.set()

    for call, end in zip(calls, done, strict=True):
        thread_pool.run_on_thread(lambda call=call, end=end: run(call, end))
    assert all(end.wait(LIMIT) for end in done)


def until_idle(count):
    """A hand is free a moment after its work is done."""
    done = threading.Event()
    while len(thread_pool._idle) < count:
        done.wait(0.001)


def test_one_after_another_is_one_thread():
    names = []
    for _ in range(5):
        asked(lambda: names.append(threading.get_ident()))
        until_idle(1)
    assert len(set(names)) == 1
    assert threading.get_ident() not in names


@pytest.mark.parametrize("count", [1, 2, 7])
def test_all_at_once_wait_for_nobody(count):
    """Each goes on when all have begun: with too few threads nobody would."""
    all_here = threading.Barrier(count)
    asked(*[lambda: all_here.wait(LIMIT)] * count)
    until_idle(count)


def test_a_hand_may_ask_for_another():
    inner = threading.Event()
    asked(lambda: (thread_pool.run_on_thread(inner.set), inner.wait(LIMIT)))
    assert inner.is_set()


def test_nothing_that_was_set_is_there_for_the_next():
    setting = ContextVar("setting", default="none")
    seen = []
    for value in "ab":
        asked(lambda value=value: (seen.append(setting.get()), setting.set(value)))
        until_idle(1)
    assert seen == ["none", "none"]


def test_a_thread_with_nothing_to_do_ends(monkeypatch):
    monkeypatch.setattr(thread_pool, "_PATIENCE", 0.01)
    threads = []
    asked(lambda: threads.append(threading.current_thread()))
    threads[0].join(LIMIT)
    assert not threads[0].is_alive()
    assert not thread_pool._idle
    asked(lambda: None)


def _in_a_child(answers):
    asked(lambda: answers.put("done"))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_hands_of_its_own():
    asked(lambda: None)
    until_idle(1)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_a_child, args=(answers,))
    child.start()
    assert answers.get(timeout=LIMIT) == "done"
    child.join(LIMIT)
    assert child.exitcode == 0
