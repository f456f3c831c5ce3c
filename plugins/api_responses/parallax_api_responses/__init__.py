"""OpenAI's Responses API: requests become chat requests. `server.response` gives the answers."""
