"""The PyTorch backend: models on CPUs through compiled kernels of its own, and on whatever else PyTorch runs on."""
