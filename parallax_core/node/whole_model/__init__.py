"""A replica that schedules itself: its text, link and process. The process runs `worker`."""
