"""Client libraries and agents that people use, checked against a real server: ``python -m tests.clients``."""
