from __future__ import annotations

from tests.unit.conftest import site

__all__ = ["site"]
