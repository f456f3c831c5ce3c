"""What the rest is written in: errors, lazy references, ids. Knows nothing of language models."""
