"""A replica that schedules itself: its text, its link, and the start of its process. The process runs `worker`."""
