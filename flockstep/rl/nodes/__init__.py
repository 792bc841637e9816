"""HSA2C on several nodes."""
