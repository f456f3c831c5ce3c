"""Messages between nodes and the frames they are written into. Knows bytes, and no network."""
