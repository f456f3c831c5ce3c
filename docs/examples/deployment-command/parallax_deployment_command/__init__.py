"""A kind of deployment whose nodes a command starts."""
