"""What nodes that die, stand still or are cut off cost an elastic run over slow links, and what a cut network does."""
