"""Ollama's API for Parallax, by the hook ``parallax_extend_server``."""
