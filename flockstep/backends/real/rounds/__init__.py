"""Elastic rounds over the mailbox: means among the nodes that are there, and a live checkpoint for those who come.

council          a room: who takes part, and what has been committed
carrier          a room: one mean or exchange among some nodes
assembly         a council at work: its clock, its words' ways out and in, its threads
elastic_fabric   a node's way to the others
outbox           words on their way to one peer, in order, without making anybody wait
taking_part      a node's part in it: letting others in between two steps, and coming in
live_checkpoint  a node's whole state between two steps, as another one takes it over
results          what came of background rounds, for those who come while they are under way
view_log         how the view has changed, for reports
"""
