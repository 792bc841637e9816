"""The fast way to simulate: all nodes, and many seeds, as rows of one matrix."""
