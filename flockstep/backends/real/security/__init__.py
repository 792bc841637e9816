"""Who may talk to whom: a run's own authority, and a certificate for every node."""
