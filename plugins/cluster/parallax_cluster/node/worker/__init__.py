"""A node that holds stages for a head: session, step loop, computing thread. See also `executor`."""
