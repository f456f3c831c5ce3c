"""Draws tokens for backends that compute with PyTorch, and converts their tensors: a library, not a plugin."""
