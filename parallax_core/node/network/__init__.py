"""Surveys what the network of this machine lets through. What follows from it is in `cluster.network`."""
