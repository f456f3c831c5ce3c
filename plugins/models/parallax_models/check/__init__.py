"""Whether this installation serves a model."""
