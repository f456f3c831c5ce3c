"""What a server shows of its cluster, and lets its operator do: the routes below ``/v1/cluster``."""
