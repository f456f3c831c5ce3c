"""The brain of one replica: requests, batching, pages, text. Pure: no clock, no thread, no file, no socket."""
