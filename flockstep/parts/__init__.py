"""What strategies are made of inside: pair exchanges, the push protocol, outer steps, warnings."""
