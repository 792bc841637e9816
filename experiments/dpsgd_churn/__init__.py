"""DPSGD through the deaths of a worker and of the server."""
