"""A page in the browser to chat with a server, and to see and change its cluster."""
