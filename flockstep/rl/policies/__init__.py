"""Policies that have a name, and what may be asked of them."""
