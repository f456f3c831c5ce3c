"""Llama in NumPy, as a backend for Parallax."""
