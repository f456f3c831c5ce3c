"""The LoRA adapters that clients may name as models; a plugin fills the table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parallax_core.server.body_messages import UnknownModel


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


def find_key(adapters: Mapping[str, ServedAdapter], name: str, own: Sequence[str]) -> str:
    """Return the key of an adapter that a request names, and note its use; empty for an ``own`` name of its model.

    Raises:
        UnknownModel: if the adapter was unloaded while the request was read; ``own`` begins with the id of the model.
    """
    if name in own:
        return ""
    if (found := adapters.get(name)) is None or found.model_id != own[0]:
        raise UnknownModel(f"the model {name!r} does not exist", "GET /v1/models lists those that do")
    found.last_used = time.monotonic()
    return found.key
