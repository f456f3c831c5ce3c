"""The id of what answers, ``system_fingerprint``."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import metadata


@lru_cache
def make_fingerprint(model_id: str) -> str:
    """Return an id that changes with the version of Parallax and the model."""
    served = f"{metadata.version('parallax-core')} {model_id}"
    return f"fp_{hashlib.sha256(served.encode()).hexdigest()[:12]}"
