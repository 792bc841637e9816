"""How much faster are two cores than one, on one vector and without a lock?"""
