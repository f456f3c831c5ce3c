"""The vLLM backend: whole models with vLLM's own scheduler, or any range of layers as a stage."""
