"""One mean, or one exchange, among some nodes: carried out to its end, or abandoned.

carrier          begins and abandons
undertaking      one attempt under way: a loop over its streams to and from all others
mean_task        what is sent and summed for a mean
exchange_task    what is sent and kept for an exchange
begin            the first frame of an attempt on a stream, and the one that says that nodes are unlike
stream_table     all streams of a node
streams          one-way streams of frames, over connections of the mailbox
adder            the mean of pieces, to the bit as everywhere
compiled_adder   the same, compiled, for large vectors
"""
