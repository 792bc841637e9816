"""SwarmSGD on real processes while nodes die and come."""
