"""The dialect held to the contract by Parallax's own kit."""

from __future__ import annotations

from types import MappingProxyType

from parallax_core.testing.dialect import DialectConformance
from parallax_dialect_ask.plugin import parallax_register_dialects


class TestAsk(DialectConformance):
    [spec] = parallax_register_dialects()
    bodies = MappingProxyType({"question": {"question": "Why?", "most_tokens": 8}})
