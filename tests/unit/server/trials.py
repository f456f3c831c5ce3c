"""How many examples the properties of the server try: each goes through a whole server, so they are few."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

MOST = 10
"""So many times as many under a profile that asks for as many or more."""


def try_few(few: int) -> settings:
    """Return the settings of a property that tries ``few`` examples in every run, and more when there is time."""
    times = settings().max_examples // settings.get_profile("short").max_examples
    return settings(max_examples=few * min(times, MOST), suppress_health_check=list(HealthCheck))
