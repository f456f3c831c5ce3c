"""Turns settings into a running deployment: executors, worker processes, commands. Needs no command line."""
