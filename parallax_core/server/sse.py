"""Server-sent events, as OpenAI's API writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

DONE = b"data: [DONE]\n\n"
"""What a stream that went well ends with."""


def event(content: Mapping[str, Any]) -> bytes:
    """Return one event carrying ``content`` as JSON."""
    return b"data: " + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
