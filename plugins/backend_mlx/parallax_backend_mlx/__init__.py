"""The MLX backend: whole models on Apple's Metal, and on CPUs with a fast BLAS."""
