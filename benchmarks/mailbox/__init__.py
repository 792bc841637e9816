"""What the mailbox leaves of a socket's speed, and what serving leaves of a training loop's."""
