"""A backend that is imported for a test only."""

from __future__ import annotations

factory = object
