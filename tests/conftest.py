"""Hypothesis profiles: the same few examples in every run, and many random ones in ``make evidence``."""

from __future__ import annotations

from hypothesis import settings

SHORT, LONG = 20, 3000
"""Examples of each property, or runs of each state machine."""

settings.register_profile("short", max_examples=SHORT, deadline=None, derandomize=True, database=None)
settings.register_profile("long", max_examples=LONG, deadline=None, database=None)
settings.load_profile("short")
