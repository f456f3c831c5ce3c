"""Turns settings into a running deployment: executors, workers, commands. Needs no command line."""
