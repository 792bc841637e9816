"""Where strategies run: in virtual time (sim) or on real threads and processes (real)."""
