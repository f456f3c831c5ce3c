"""Where settings come from."""
