"""Watching a real run: nodes keep journals in a folder, and whoever likes reads them."""

from flockstep.live.journal import Journal, open_journal

__all__ = ["Journal", "open_journal"]
