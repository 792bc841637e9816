"""CELGC against naive parallel clipping: an LSTM on WikiText-2, eight virtual nodes."""
