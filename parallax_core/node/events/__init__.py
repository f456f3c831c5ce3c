"""Tells plugins what happened in a server, each on its own thread. The events are in `contracts.event`."""
