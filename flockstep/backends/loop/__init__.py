"""A strategy in the user's own loop, wherever that loop runs: alone, on real processes, on virtual nodes."""
