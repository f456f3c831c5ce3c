"""Decisions about a cluster, as pure functions: no socket, no clock, no thread. Their effects are in `node`."""
