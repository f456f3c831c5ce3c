"""Decides what one replica computes next: requests, batching, pages, text. No clock, thread, file or socket."""
