"""A node that holds stages for a head: its session, its step loop and its computing thread."""
