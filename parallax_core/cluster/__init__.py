"""Decisions about a cluster, as pure functions without sockets or clocks. Effects are in `node`."""
