"""The user's own loop on real nodes, and how a node comes into a run."""
