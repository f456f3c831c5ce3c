"""The vLLM backend: serves whole models with vLLM's own scheduler."""
