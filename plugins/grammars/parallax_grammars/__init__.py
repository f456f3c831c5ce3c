"""Compiles grammars of answers with llguidance."""
