"""The answers of the completion route, whole and in pieces."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from parallax_api_openai.usage import Usage
from parallax_core.api.dialect import ResponseModel

StopReason = Literal["stop", "length"]


class CompletionLogprobLists(ResponseModel):
    """The log-probabilities of a completion, token by token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Where each token begins, in characters."""


class CompletionChoice(ResponseModel):
    """One completion, or its next piece."""

    index: int
    text: str
    finish_reason: StopReason | None
    """Null only in a stream, before the end."""
    logprobs: CompletionLogprobLists | None = None


class CompletionReply(ResponseModel, kw_only=True):
    """The answer to ``POST /v1/completions``, and each event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    usage: Usage | UnsetType | None = UNSET
    """In a stream, if requested: on the last event, which has no choices; null on the others."""
    note: str | UnsetType = UNSET
    """How it was computed, if that is unusual: after a loss, a part of it by other weights; absent otherwise."""
    choices: list[CompletionChoice]
