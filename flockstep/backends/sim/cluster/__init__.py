"""What a user declares of virtual machines: links, speeds, and faults."""
