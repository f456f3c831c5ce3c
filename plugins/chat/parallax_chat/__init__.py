"""Talks to a running server in the terminal."""
