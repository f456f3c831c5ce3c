"""Reads requests for generated text, for all API dialects that have them."""
