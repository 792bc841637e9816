"""What topics are worth: coherence, held-out perplexity, distances, and what a corpus says of them."""
