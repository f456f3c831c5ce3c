"""Decisions about a cluster, as pure functions: no socket, clock or thread. Effects are in `node`."""
