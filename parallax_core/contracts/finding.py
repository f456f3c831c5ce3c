"""What ``parallax doctor`` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing worth knowing about this machine or this installation."""

    topic: str
    """What it is about, a word or two: ``mlx BLAS``."""
    status: Literal["ok", "warning", "error"]
    message: str
    remedy: str = ""
    """What to do about it; empty when there is nothing to do."""
