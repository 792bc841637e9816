"""Things to train: each knows its data and its loss, and nothing of nodes or networks."""
