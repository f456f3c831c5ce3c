"""Writes models as GGUF files, in the types of llama.cpp."""
