"""Writes numbers of bytes for people."""

from __future__ import annotations

KIBI = 1024


def format_bytes(size: float) -> str:
    """Return ``size`` as text, such as ``1.3 GiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < KIBI:
            return f"{size:.0f} {unit}"
        size /= KIBI
    return f"{size:.1f} GiB"
