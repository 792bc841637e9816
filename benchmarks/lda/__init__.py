"""Topic models on one machine, beside their peers."""
