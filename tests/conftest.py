"""What every test may count on, and what a person is told of tests that could not run."""

import os
import signal
from collections import Counter

# Several tests run at a time. Left alone, torch starts as many threads in each as there are cores, which spin while
# they wait for each other: with two at a time that took seven times as long. Before anybody imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Started in the background of a script, a process ignores Ctrl-C, and so do its children: tests of it need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter):
    """How many tests were skipped for which reason: what nobody tells of is taken for tested."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = Counter(told[2].removeprefix("Skipped: ") if isinstance(told, tuple) else str(told) for told in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
