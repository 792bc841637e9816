"""Collectives for real: by torch.distributed between processes, in shared memory between threads."""
