from __future__ import annotations

from tests.support.peer import peer
from tests.unit.conftest import site

__all__ = ["peer", "site"]
