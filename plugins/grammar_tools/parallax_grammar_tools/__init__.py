"""Helps to write grammars of answers, by schemas and patterns: a library, not a plugin."""
