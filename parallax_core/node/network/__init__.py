"""What the network of this machine lets through, as others see it. What follows from it is in `cluster.network`."""
