"""HSA2C for small networks: roll-out, gradient and update as compiled loops that leave the interpreter lock."""
