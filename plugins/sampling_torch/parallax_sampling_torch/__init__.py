"""Draws tokens for PyTorch backends, and converts their tensors: a library, not a plugin."""
