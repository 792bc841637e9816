"""What the rows are called, and which is held against which."""

GLOO, MEAN, MEAN_TLS = "gloo all-reduce", "mean over the mailbox", "the same, mutual TLS"
BARE, BARE_TLS = "bare sockets", "bare TLS sockets"
AGAINST = {MEAN: GLOO, MEAN_TLS: BARE_TLS}
