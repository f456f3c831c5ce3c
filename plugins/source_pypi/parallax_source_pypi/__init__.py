"""Model sources for Python wheels and GGUF files, which it converts to standard model folders."""
