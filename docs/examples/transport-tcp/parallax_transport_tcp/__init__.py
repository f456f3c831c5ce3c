"""TCP on loopback, as a transport for Parallax."""
