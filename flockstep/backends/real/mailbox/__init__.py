"""Ask and answer between processes and machines: HTTP/1.1 over long-lived connections, with mutual TLS.

wire        the fixed header before every message: what is accepted, and why something is refused
http        the heads of requests and responses
transfer    bodies, straight from and into memory, with a checksum
memory      where bodies go: buffers used again, pinned memory for GPUs
server      who listens: one thread per connection
client      who calls: idle connections used again
members     who is there: addresses, incarnations, who was lost, who has left
box         the mailbox: handlers, questions, letters
"""
