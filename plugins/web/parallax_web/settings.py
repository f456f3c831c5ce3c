"""The section ``[web]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class WebSettings:
    """Whether the page is served."""

    enabled: bool = True
    """Whether the server has the page."""
