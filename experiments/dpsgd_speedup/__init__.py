"""Speed-up of DPSGD in cores and machines."""
