"""Serve large language models over whatever machines you have; everything replaceable is a plugin."""
