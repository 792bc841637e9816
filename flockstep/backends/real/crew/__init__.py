"""Lock-free workers of one real node, as threads or as processes on shared memory."""
