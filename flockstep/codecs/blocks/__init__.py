"""What codecs of few bits share: a vector in blocks, codes packed to the bit, and a dither from a counter.

plan          blocks, how codes are laid out, and the hash behind the dither
on_torch      dither and packing in plain torch, anywhere
on_numba      the same inside compiled loops on a CPU core
on_triton     the same inside kernels on a GPU
engine        which of the three runs where
"""
