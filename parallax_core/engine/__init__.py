"""Decides a replica's next step: requests, batching, pages, text. No clock, thread, file or socket."""
