"""The fixtures of core's unit tests."""

from __future__ import annotations

from tests.unit.cli.conftest import peer
from tests.unit.conftest import site

__all__ = ["peer", "site"]
