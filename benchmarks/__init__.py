"""Side-by-side ratios, one command each: ``python -m benchmarks.NAME``."""
