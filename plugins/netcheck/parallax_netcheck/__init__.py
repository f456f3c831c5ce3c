"""Says what the network of a machine lets through."""
