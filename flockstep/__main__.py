"""``python -m flockstep``: the same as ``flockstep``."""

from flockstep.cli import app

# Guarded, because processes started by the demo import this module again.
if __name__ == "__main__":
    app(prog_name="python -m flockstep")
