"""Runs the requests of a file."""
