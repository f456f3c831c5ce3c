"""Finds the policies a user named, and refuses their invalid answers. `builtin` has core's own."""
