"""Anthropic's Messages API for Parallax: requests become chat requests."""
