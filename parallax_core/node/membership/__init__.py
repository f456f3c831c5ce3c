"""Which nodes have joined a head, and the worker processes it starts itself. What a worker does is in `worker`."""
