"""A service of nodes that compares clocks."""
