"""Reads the bodies by which administrators load and unload LoRA adapters."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field

from parallax_core.api import InvalidRequest
from parallax_core.api.bodies import Strict, TextField
from parallax_core.api.dialect import read_body

MAX_BYTES = 16384
"""The largest body: it is read on the event loop."""

NameField = Annotated[TextField, Field(min_length=1, max_length=1024)]
PathField = Annotated[TextField, Field(min_length=1, max_length=4096)]


class LoadRequest(Strict):
    """The body of ``POST /v1/load_lora_adapter``."""

    lora_name: NameField
    """What clients call the adapter, as ``model`` of their requests."""
    lora_path: PathField
    """Its folder on the server's machine, in PEFT's format; or its name on a hub, such as ``org/name``."""
    base_model_name: Annotated[TextField, Field(max_length=1024)] | None = None
    """A name of the model that it is for; by default, or if it is empty, the main one."""
    load_inplace: bool | None = None
    """Replace an adapter of that name; its running requests end with the old one."""
    pinned: bool | None = None
    """Never unload it to make room for others."""
    is_3d_lora_weight: Literal[False] | None = None
    """Of vLLM; only false, which means nothing here."""


class UnloadRequest(Strict):
    """The body of ``POST /v1/unload_lora_adapter``."""

    lora_name: NameField
    """The adapter."""
    lora_int_id: int | None = None
    """Of vLLM; it means nothing here."""


Change = TypeVar("Change", LoadRequest, UnloadRequest)


def read_change(data: bytes, schema: type[Change]) -> Change:
    """Return the change that a body asks for.

    Raises:
        InvalidRequest: if it is too large or not valid; ``param`` names the field.
    """
    if len(data) > MAX_BYTES:
        raise InvalidRequest(f"the body has {len(data)} bytes; at most {MAX_BYTES} are allowed")
    return read_body(data, schema)
