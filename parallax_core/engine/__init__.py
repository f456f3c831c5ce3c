"""Decides what one replica computes next: requests, batching, pages, text. No clocks or threads."""
