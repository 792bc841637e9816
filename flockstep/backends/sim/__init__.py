"""The virtual-time simulator."""
