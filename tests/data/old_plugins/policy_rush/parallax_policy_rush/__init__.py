"""A batching policy that waits for more only while more keeps coming."""
