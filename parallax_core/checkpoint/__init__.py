"""Model folders on disk: safetensors, files fetched in part, and digests of weights. It builds no model."""
