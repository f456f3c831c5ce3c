"""Sets the number of examples of the server's properties: few, since each goes through a whole server."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

MOST = 10
"""The largest factor by which a profile with more examples raises the number."""


def try_few(few: int) -> settings:
    """Return settings with ``few`` examples in the short profile, and more in longer ones."""
    times = settings().max_examples // settings.get_profile("short").max_examples
    return settings(max_examples=few * min(times, MOST), suppress_health_check=list(HealthCheck))
