"""OpenAI's Responses API for Parallax: requests become chat requests."""
