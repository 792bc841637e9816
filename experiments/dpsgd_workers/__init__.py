"""How much of a push DPSGD's server should take, from 1 to 64 workers."""
