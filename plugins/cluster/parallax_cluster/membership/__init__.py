"""Membership of a cluster, as pure functions. Connections and files are in `node`."""
