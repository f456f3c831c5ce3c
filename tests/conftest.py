"""How many examples hypothesis tries: the same few in every run, and many others by ``make evidence``."""

from __future__ import annotations

from hypothesis import settings

SHORT, LONG = 60, 3000
"""Examples of each property, or runs of each machine of states."""

settings.register_profile("short", max_examples=SHORT, deadline=None, derandomize=True, database=None)
settings.register_profile("long", max_examples=LONG, deadline=None, database=None)
settings.load_profile("short")
