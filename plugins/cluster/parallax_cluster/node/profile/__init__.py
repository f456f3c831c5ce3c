"""Reports this machine's devices, their measured speed and its disk. Values are in `wire.profile`."""
