"""Membership of a cluster and the right to join it, as pure functions. Connections and files are in `node`."""
