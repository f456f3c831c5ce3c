"""The PyTorch backend: runs models on CPUs with its own compiled kernels, and on PyTorch's other devices."""
