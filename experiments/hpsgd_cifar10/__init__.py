"""HPSGD: accuracy in a fixed wall time, and where its merges swing."""
