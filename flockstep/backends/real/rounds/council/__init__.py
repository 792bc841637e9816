"""Who takes part in rounds, and what has been committed: decisions only, no clock, thread or network of their own.

council          one node's part in it, and why it is safe
election         one change of view: how the nodes of a view agree, once, on the next
round_leader     what the leader of a view does: begin rounds, commit them
own_rounds       the rounds that a node's own program waits in
signs_of_life    what a node knows about whether the others live
words            what nodes tell each other
"""
