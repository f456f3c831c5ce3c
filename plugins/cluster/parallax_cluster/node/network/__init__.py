"""Surveys the network of this machine. What follows from it is in `cluster.network`."""
