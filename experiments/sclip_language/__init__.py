"""Deep nets under heavy-tailed noise."""
