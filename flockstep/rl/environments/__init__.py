"""What an agent plays in: gymnasium environments, their vectors, and Atari games."""
