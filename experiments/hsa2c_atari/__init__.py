"""HSA2C learns to play Atari games."""
