"""Models from Python wheels and GGUF files: what is found becomes a standard model folder."""
