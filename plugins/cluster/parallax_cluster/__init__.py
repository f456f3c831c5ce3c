"""Clusters: machines that join a server, and the plan of which layers each has."""
