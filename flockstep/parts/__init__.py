"""Values a strategy calls: clips, averages, topologies and codecs."""
