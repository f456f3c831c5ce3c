"""A node that holds stages for a head: session, step loop, computing thread. The head's side is `executor`."""
