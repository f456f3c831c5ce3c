"""Calls the API of a running server, for commands. A library, not a plugin."""
