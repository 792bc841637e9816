"""What eight nodes buy at a sixteenth of the bytes: rarely, in few bits, often at first, with shared moments."""
