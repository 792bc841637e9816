"""Real threads and processes: a verb blocks, and returns."""
