"""Strategies side by side on one workload and one declared cluster: planned, run, kept in a folder, reported."""
