"""OLMo 2, as a model family for Parallax."""
