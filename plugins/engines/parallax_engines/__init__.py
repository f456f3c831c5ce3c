"""Makes the environments of engines."""
