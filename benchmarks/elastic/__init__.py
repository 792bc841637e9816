"""What a mean over streams of the mailbox costs beside gloo and bare sockets, and on a slow link."""
