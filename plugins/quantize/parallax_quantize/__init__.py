"""Writes models in fewer bits."""
