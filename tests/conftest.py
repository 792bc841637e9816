"""What every test may count on, and what a person is told of tests that could not run."""

import gc
import os
import signal
import sys
from collections import Counter, defaultdict
from multiprocessing import forkserver

import pytest

# Several tests run at a time. Left alone, torch starts as many threads in each as there are cores, which spin while
# they wait for each other: with two at a time that took seven times as long. Before anybody imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A test that compiles a model compiles a dozen small functions: torch would start a process for each core for them.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# A million objects are made by imports and by collecting, and none of them goes: not to be looked at again and again.
gc.disable()

# Where bytecode is not kept, every worker rewrites the asserts of every test file anew, and every process that a test
# starts compiles the library: a third of what collecting costs. It goes to __pycache__, as it does everywhere else.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Started in the background of a script, a process ignores Ctrl-C, and so do its children: tests of it need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Nodes of topic models and actor-critics import these, three seconds for each node: here once, in the server that they
# are forked from.
_preload = forkserver.set_forkserver_preload
_OURS = ["flockstep.lda", "flockstep.rl", "sklearn", "gymnasium", "matplotlib.figure"]
forkserver.set_forkserver_preload = lambda names: _preload([*names, *_OURS])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test with many ``cases`` some, spread evenly, are in ``make test``, and some of those in ``make check``."""
    families = defaultdict(list)
    for item in items:
        if (mark := item.get_closest_marker("cases")) is not None:
            families[item.location[0], item.originalname].append((item, mark.kwargs))
    for family in families.values():
        numbers = family[0][1]
        tested = _spread([item for item, _ in family], numbers.get("test"), pytest.mark.thorough)
        _spread(tested, numbers.get("check"), pytest.mark.slow)
    for item in items:
        if item.get_closest_marker("thorough") is not None:
            item.add_marker(pytest.mark.slow)


def _spread(items, count, mark):
    """So many of them, evenly; all others get the mark."""
    if count is None:
        return items
    kept = {(2 * k + 1) * len(items) // (2 * count) for k in range(count)}
    for number, item in enumerate(items):
        if number not in kept:
            item.add_marker(mark)
    return [item for number, item in enumerate(items) if number in kept]


def pytest_collection_finish():
    """From here on garbage is collected, of what tests make."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter):
    """How many tests were skipped for which reason: what nobody tells of is taken for tested."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = Counter(told[2].removeprefix("Skipped: ") if isinstance(told, tuple) else str(told) for told in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
