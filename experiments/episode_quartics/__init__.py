"""EPISODE against CELGC on two scalar quartics that pull apart."""
