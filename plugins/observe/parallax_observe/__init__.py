"""Measures what a server does: metrics and traces."""
