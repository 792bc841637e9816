"""What every test may count on, and what a person is told of tests that could not run."""

import os
import signal
import sys
from collections import Counter

# Several tests run at a time. Left alone, torch starts as many threads in each as there are cores, which spin while
# they wait for each other: with two at a time that took seven times as long. Before anybody imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where bytecode is not kept, every worker rewrites the asserts of every test file anew, and every process that a test
# starts compiles the library: a third of what collecting costs. It goes to __pycache__, as it does everywhere else.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Started in the background of a script, a process ignores Ctrl-C, and so do its children: tests of it need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter):
    """How many tests were skipped for which reason: what nobody tells of is taken for tested."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = Counter(told[2].removeprefix("Skipped: ") if isinstance(told, tuple) else str(told) for told in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
