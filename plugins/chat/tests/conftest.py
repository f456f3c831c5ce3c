from __future__ import annotations

from tests.support.peer import peer

__all__ = ["peer"]
