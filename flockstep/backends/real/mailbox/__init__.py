"""Ask and answer between processes and machines: HTTP/1.1 over long-lived connections, with mutual TLS.

wire             the fixed header before every message: what is accepted, and why something is refused
http             heads of requests and responses; bodies, straight from and into memory, with a checksum
memory           where bodies go: buffers used again, pinned memory for GPUs
server           listens: one thread per connection
client           calls: a frame and its data there, a frame and its data back, over connections used again
request_handler  the answering side of a connection
identity_query   what a mailbox says of itself
limits           the one timeout, and all deadlines that follow from it
mailbox          handlers and questions
letters          piles of letters, in and out, and what happens where nobody takes them
heartbeat        signs of life
endpoint         all of it, on an address, with keys
mail_fabric      a node's way to the others by mail alone
"""
