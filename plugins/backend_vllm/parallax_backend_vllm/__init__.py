"""The vLLM backend: serves whole models with vLLM's own scheduler, and computes any range of layers as a stage."""
