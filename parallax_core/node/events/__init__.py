"""Events for plugins that watch a server, each on a thread of its own."""
