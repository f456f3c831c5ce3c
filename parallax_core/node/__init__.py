"""Effects: threads, files and time around the pure engine."""
