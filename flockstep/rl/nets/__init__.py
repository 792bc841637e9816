"""Policies as torch modules: their engine, its workers, and what these share."""
