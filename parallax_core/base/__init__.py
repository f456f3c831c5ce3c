"""Errors, ids, lazy references, logging and facts about the machine. Knows nothing of language models."""
