"""Helps backends that compute layers themselves: speeds, page pools, answers. A library, not a plugin."""
