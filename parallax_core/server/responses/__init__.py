"""OpenAI's Responses API: its requests are read as chat requests. The answers come from `server.response`."""
