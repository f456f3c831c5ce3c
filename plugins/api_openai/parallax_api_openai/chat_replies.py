"""The answers of the chat route, whole and in pieces."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from parallax_api_openai.usage import Usage
from parallax_core.api.dialect import ResponseModel

ChatStopReason = Literal["stop", "length", "tool_calls"]


class ShownToken(ResponseModel):
    """A token and its log-probability."""

    token: str
    """The text of the token, or its bytes in hexadecimal if they are not valid UTF-8 alone."""
    logprob: float
    """Before penalties and filters; -9999 stands for minus infinity."""
    bytes: list[int]


class RankedToken(ShownToken):
    """A token of an answer, and the most probable tokens at its position."""

    top_logprobs: list[ShownToken]


class ChatLogprobs(ResponseModel):
    """The log-probabilities of an answer in a chat."""

    content: list[RankedToken]
    refusal: None = None


class FunctionCall(ResponseModel):
    """The function that an answer calls."""

    name: str
    arguments: str
    """JSON, as the model wrote it."""


class MessageToolCall(ResponseModel, kw_only=True):
    """A tool call in an answer."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(ResponseModel, kw_only=True):
    """An answer in a chat."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """Null if there are only tool calls."""
    refusal: None = None
    annotations: list[None] = []  # noqa: RUF012 -- msgspec copies it
    """Always empty."""
    reasoning_content: str | UnsetType = UNSET
    """The reasoning, if there is any."""
    reasoning: str | UnsetType = UNSET
    """The same."""
    tool_calls: list[MessageToolCall] | UnsetType = UNSET
    """The tool calls, if there are any."""


class ChatChoice(ResponseModel):
    """One answer in a chat."""

    index: int
    message: ChatMessage
    finish_reason: ChatStopReason
    logprobs: ChatLogprobs | None


class ChatReply(ResponseModel, kw_only=True):
    """The answer to ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    """Seconds since 1970."""
    model: str
    system_fingerprint: str
    """Changes with the version of Parallax and the model."""
    service_tier: Literal["default"] = "default"
    usage: Usage
    note: str | UnsetType = UNSET
    """How it was computed, if that is unusual: after a loss, a part of it by other weights; absent otherwise."""
    choices: list[ChatChoice]


class FunctionDelta(ResponseModel, kw_only=True):
    """The name of a called function, or the next piece of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(ResponseModel, kw_only=True):
    """The next piece of a tool call; the first has the id, the type and the name."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(ResponseModel):
    """The next piece of an answer in a chat."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The same as ``reasoning_content``."""
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(ResponseModel):
    """The next piece of one answer in a chat."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatStopReason | None = None


class ChatChunk(ResponseModel, kw_only=True):
    """An event of a stream of ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"] = "default"
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    """If requested: on the last event, which has no choices; null on the others."""
    note: str | UnsetType = UNSET
    """As in a whole answer; on the events of its end."""
