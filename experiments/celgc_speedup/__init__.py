"""Steps to a fixed gradient norm against the number of nodes, for CELGC."""
