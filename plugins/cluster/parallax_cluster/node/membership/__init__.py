"""The nodes that have joined a head, and its own worker processes. What they do is in `worker`."""
