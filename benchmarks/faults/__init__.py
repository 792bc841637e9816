"""What a node sees of a peer that is killed, stopped, or cut off in the middle of a transfer."""
