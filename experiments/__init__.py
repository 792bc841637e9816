"""The papers' figures, one command each: ``python -m experiments.NAME``."""
