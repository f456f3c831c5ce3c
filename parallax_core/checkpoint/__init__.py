"""Model folders on disk: safetensors, files fetched in part, and digests of weights. Builds no model."""
