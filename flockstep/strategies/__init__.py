"""Strategies, one algorithm family per file. A strategy is a program: read its ``run``."""
