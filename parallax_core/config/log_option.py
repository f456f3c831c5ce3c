"""The setting of commands that log."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

LogFormat = Annotated[
    Literal["text", "json"] | None,
    Meta(
        description="The form of log lines: text, or json, an object a line; by default PARALLAX_LOG_FORMAT, or text."
    ),
]
