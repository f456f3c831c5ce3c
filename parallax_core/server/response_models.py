"""The objects of the API, from which answers are written and described."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from parallax_core.contracts.engine import HealthState

StopReason = Literal["stop", "length"]
ChatStopReason = Literal["stop", "length", "tool_calls"]


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


class CachedTokens(ResponseModel, kw_only=True):
    """Details of the prompt's tokens."""

    audio_tokens: int = 0
    cached_tokens: int
    """Tokens that were not computed because the prefix cache had them."""


class OutputDetails(ResponseModel, kw_only=True):
    """Details of the tokens of the answers."""

    accepted_prediction_tokens: int = 0
    audio_tokens: int = 0
    reasoning_tokens: int
    """Tokens of the reasoning."""
    rejected_prediction_tokens: int = 0


class Usage(ResponseModel):
    """The token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: OutputDetails


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
    annotations: list[None] = []
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
    choices: list[CompletionChoice]


ModelCapability = Literal["completion", "chat", "tools", "structured_output", "reasoning", "embeddings"]
ModelStatus = Literal["unloaded", "loading", "ready", "draining"]


class ModelReply(ResponseModel, kw_only=True):
    """A model."""

    id: str
    root: str
    """The id of the model that answers, if ``id`` is another of its names."""
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


class ModelsReply(ResponseModel, kw_only=True):
    """The models that the server knows, those that answer first."""

    object: Literal["list"] = "list"
    data: list[ModelReply]


class HealthReply(ResponseModel):
    """Whether the server can answer."""

    status: HealthState
    reason: str


class VersionReply(ResponseModel):
    """The version of Parallax."""

    version: str


class StopReply(ResponseModel):
    """The answer to ``POST /v1/stop_request``."""

    id: str
    stopped: Literal[True] = True
