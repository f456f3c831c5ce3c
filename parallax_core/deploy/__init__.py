"""From options to a running deployment: executors, worker processes, commands. Usable without the command line."""
