"""HSA2C learns to play Pong."""
