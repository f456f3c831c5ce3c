"""The PyTorch backend: runs models on CPUs with compiled kernels, and on other devices."""
