"""What happened, in the formats of other programs."""
