import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "mailbox"))

from crew import Crew

from flockstep.backends.real.security.keys import create


@pytest.fixture
def crews():
    """Opens crews, and closes them when the test is over."""
    opened = []

    def open_one(size, keys=None):
        opened.append(Crew(size, keys))
        return opened[-1]

    yield open_one
    for crew in opened:
        crew.close()


@pytest.fixture(scope="session")
def run_keys(tmp_path_factory):
    """Of a run of five, and of another run."""
    folders = [tmp_path_factory.mktemp("keys") / name for name in ("ours", "theirs")]
    for folder in folders:
        create(folder, 5)
    return folders
