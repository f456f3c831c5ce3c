"""The settings and API keys of a server over HTTP, and its cluster live in the terminal."""
