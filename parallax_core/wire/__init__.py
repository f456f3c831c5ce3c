"""What crosses between nodes: messages, and the frames they are written into. Knows bytes, and no network."""
