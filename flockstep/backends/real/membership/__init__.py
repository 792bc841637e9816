"""Who is in a run: what nodes say of themselves, what is believed, which number is whose, and who has left.

member_line  a line about a node, as it travels
members      every node's address and incarnation, who was lost, who has left
hearsay      what third parties say of nodes in a run without keys
former_life  a node that was started anew where the clock was set back
numbers      which numbers are promised to nodes that come
lingering    how long a node whose loop has ended answers the others
"""
