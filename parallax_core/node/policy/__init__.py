"""Finds the policies a user named and refuses their invalid answers. Built-in policies are in `builtin`."""
