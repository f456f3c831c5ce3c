"""Who may join a cluster, and which nodes are in it, as pure functions. Connections and files are in `node`."""
