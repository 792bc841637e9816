"""Ask and answer between processes and machines: HTTP/1.1 over long-lived connections, with mutual TLS.

wire        the fixed header before every message: what is accepted, and why something is refused
address     HOST:PORT
http        the heads of requests and responses
transfer    bodies, straight from and into memory, with a checksum
memory      where bodies go: buffers used again, pinned memory for GPUs
server      who listens: one thread per connection
client      who calls: idle connections used again
calls       one call: a frame and its data there, a frame and its data back
desk        the answering side of a connection
about       what a mailbox says of itself
members     who is there: addresses, incarnations, who was lost, who has left
limits      the one timeout, and all deadlines that follow from it
box         the mailbox: handlers, questions, letters
pulse       signs of life
house       all of it, on an address, with keys
"""
