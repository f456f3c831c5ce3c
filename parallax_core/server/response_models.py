"""The objects of the API, from which answers are written and described."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from parallax_core.contracts.engine import HealthState


class ResponseModel(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a response: exactly these fields, in this order.

    All of them are there but those that are `UNSET` by default. What is written apart, such as the pieces of a large
    list, is a `msgspec.Raw`; see `parallax_core.server.json_pieces`.
    """


class ErrorDetail(ResponseModel):
    """An error."""

    message: str
    """The error, and the next step."""
    type: str
    """OpenAI's type of the error."""
    param: str | None
    """The invalid field, as a path with dots."""
    code: str | None
    """OpenAI's code of the error, for programs; null for most errors."""
    hint: str | UnsetType = UNSET
    """The end of the message, if it is a remedy for the user of a command."""


class ErrorReply(ResponseModel):
    """The response for every error."""

    error: ErrorDetail


ModelCapability = Literal["completion", "chat", "tools", "structured_output", "reasoning", "embeddings"]
ModelStatus = Literal["unloaded", "loading", "ready", "draining"]


class ModelReply(ResponseModel, kw_only=True):
    """A model."""

    id: str
    root: str
    """The id of the model that answers, if ``id`` is another of its names; of a LoRA adapter, its folder."""
    parent: str | UnsetType = UNSET
    """Of a LoRA adapter, the id of its base model; absent otherwise."""
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "parallax"
    status: ModelStatus
    """``ready``: it answers; ``draining``: it finishes what it has; ``unloaded``: an administrator may load it."""
    max_model_len: int | None = None
    """The largest number of tokens of a prompt and its answer together; null if it is not known yet."""
    capabilities: list[ModelCapability] = []
    """What requests may ask for: ``completion``, ``chat`` if the model has a chat template, ``tools`` and ``reasoning``
    if the model has them and the server knows how it writes them, ``structured_output`` if its engine and tokenizer
    take grammars, and ``embeddings``. A request for anything else, such as an image (``vision``), gets a 400."""
    default_sampling_params: dict[str, float] = {}
    """The defaults for fields of a request that differ from OpenAI's: recommended by the model's authors, or set with
    ``generation_config``."""
    weights: list[str] | UnsetType = UNSET
    """The models whose files compute it; absent: the server has one form of it."""


class HealthReply(ResponseModel):
    """Whether the server can answer."""

    status: HealthState
    reason: str


class VersionReply(ResponseModel):
    """The version of Parallax."""

    version: str
