"""Tells plugins of a server's events, each on its own thread. The events are in `contracts.event`."""
