"""Simulates a placed cluster by events in virtual time, with the serving head and policies."""
