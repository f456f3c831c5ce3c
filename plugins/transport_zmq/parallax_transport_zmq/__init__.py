"""Links between machines over ZeroMQ, and the keys that protect them."""
