"""SwarmSGD on CIFAR-10: what local steps and few bits cost in accuracy."""
