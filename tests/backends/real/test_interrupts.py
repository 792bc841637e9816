import signal
import subprocess
import sys
import threading

import pytest

from flockstep.backends.real.launch.child_processes import interrupted_later


def test_ctrl_c_waits_for_the_end():
    finished = []
    with pytest.raises(KeyboardInterrupt), interrupted_later():
        signal.raise_signal(signal.SIGINT)
        finished.append(True)
    assert finished
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_another_thread_was_given_waits_as_well():
    finished = []
    with pytest.raises(KeyboardInterrupt), interrupted_later():
        # Blocked in this thread only: the signal to the other one is handled at once.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.raise_signal(signal.SIGINT)
        finished.append(True)
    assert finished


def test_nothing_happens_without_ctrl_c():
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with interrupted_later():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_started_inside_does_not_feel_it():
    code = "import signal; signal.raise_signal(signal.SIGINT); print('fine')"
    with interrupted_later():
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "fine\n"


def test_another_thread_is_left_alone():
    seen = []

    def work():
        with interrupted_later():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
