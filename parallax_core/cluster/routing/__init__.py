"""A router's view of each replica's load and speed, and the policy of the expected finish."""
