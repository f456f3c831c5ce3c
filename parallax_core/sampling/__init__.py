"""The draw: every backend gives the same token for the same logits, seed and position."""
