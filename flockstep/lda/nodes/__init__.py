"""Topics learned by several nodes: DPSVI, its two sides, and what travels between them."""
