"""QSGD's levels: each block in whole steps of its largest magnitude over L, rounded up or down by chance.

plan          scales, levels, and how a message is laid out
on_torch      the same integers in plain torch, anywhere
on_numba      one pass per block on a CPU core, without the interpreter's lock
on_triton     one program per block on a GPU
engine        the three by name
"""
