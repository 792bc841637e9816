"""A laboratory of slow links on one machine, and what they leave of a training loop's speed."""
