"""OpenAI's chat completions, completions and list of models."""
