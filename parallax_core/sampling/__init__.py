"""The draw: each backend gives the same token for equal logits, seed and position. Uses no framework."""
