"""What this machine says of itself: its devices, their measured speed, its disk. Values are in `wire.profile`."""
