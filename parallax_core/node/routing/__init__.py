"""Sends a request to a replica, and to another one if the first is lost. Routing policies are plugins."""
