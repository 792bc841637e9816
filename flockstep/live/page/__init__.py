"""The live page's own files; what it shares with others is in ``flockstep.pages``."""
