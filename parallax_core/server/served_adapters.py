"""The LoRA adapters that clients may name as models; a plugin fills the table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class ServedAdapter:
    """A LoRA adapter that is served beside its base model, under a name of its own."""

    name: str
    """What clients call it."""
    model_id: str
    """The id of its base model."""
    key: str
    """`Request.adapter` of its requests: different for different content."""
    root: str
    """Where it came from, for lists of models."""
    last_used: float = 0.0
    """When a request last asked for it, by `time.monotonic`."""


ServedAdapters = dict[str, ServedAdapter]
"""The adapters of a server, by name."""


def find_key(adapters: Mapping[str, ServedAdapter], name: str) -> str:
    """Return the key of an adapter that a request asks for, and note its use; empty for the name of a model."""
    if (found := adapters.get(name)) is None:
        return ""
    found.last_used = time.monotonic()
    return found.key


def list_adapter_names(adapters: Mapping[str, ServedAdapter], model_id: str) -> tuple[str, ...]:
    """Return the names of the adapters of a model."""
    return tuple(each.name for each in adapters.values() if each.model_id == model_id)
