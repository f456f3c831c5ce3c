"""Findings, which ``parallax doctor`` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One fact or problem of this machine or installation."""

    topic: str
    """The subject in a word or two, such as ``mlx BLAS``."""
    status: Literal["ok", "warning", "error"]
    message: str
    remedy: str = ""
    """What to do about it; empty: nothing."""
