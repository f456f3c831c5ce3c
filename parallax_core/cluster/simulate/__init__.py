"""Simulates a placed cluster by events in virtual time, with the head, the policies and the placement that serve."""
