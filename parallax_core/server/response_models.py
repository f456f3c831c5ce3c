"""The schemas of responses, for ``/openapi.json``; tests check every response against them.

The server does not use these models to write responses: it writes JSON directly.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from parallax_core.contracts.engine import HealthState

StopReason = Literal["stop", "length"]
ChatStopReason = Literal["stop", "length", "tool_calls"]


class ResponseModel(BaseModel):
    """A part of a response, with exactly these fields."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


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
    hint: str | None = None
    """The end of the message, if it is a remedy for the user of a command."""


class ErrorReply(ResponseModel):
    """The response for every error."""

    error: ErrorDetail


class CachedTokens(ResponseModel):
    """Details of the prompt's tokens."""

    audio_tokens: int
    cached_tokens: int
    """Tokens that were not computed because the prefix cache had them."""


class OutputDetails(ResponseModel):
    """Details of the tokens of the answers."""

    accepted_prediction_tokens: int
    audio_tokens: int
    reasoning_tokens: int
    """Tokens of the reasoning."""
    rejected_prediction_tokens: int


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
    refusal: None


class FunctionCall(ResponseModel):
    """The function that an answer calls."""

    name: str
    arguments: str
    """JSON, as the model wrote it."""


class MessageToolCall(ResponseModel):
    """A tool call in an answer."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(ResponseModel):
    """An answer in a chat."""

    role: Literal["assistant"]
    content: str | None
    """Null if there are only tool calls."""
    refusal: None
    annotations: list[None]
    """Always empty."""
    reasoning_content: str = ""
    """The reasoning, if there is any."""
    reasoning: str = ""
    """The same."""
    tool_calls: list[MessageToolCall] = []
    """The tool calls, if there are any."""


class ChatChoice(ResponseModel):
    """One answer in a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatStopReason


class ChatReply(ResponseModel):
    """The answer to ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    """Seconds since 1970."""
    model: str
    system_fingerprint: str
    """Changes with the version of Parallax and the model."""
    service_tier: Literal["default"]
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(ResponseModel):
    """The name of a called function, or the next piece of its arguments."""

    name: str = ""
    arguments: str


class ToolCallDelta(ResponseModel):
    """The next piece of a tool call; the first has the id, the type and the name."""

    index: int
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionDelta


class ChatDelta(ResponseModel):
    """The next piece of an answer in a chat."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    reasoning_content: str = ""
    reasoning: str = ""
    """The same as ``reasoning_content``."""
    tool_calls: list[ToolCallDelta] = []


class ChatChunkChoice(ResponseModel):
    """The next piece of one answer in a chat."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatStopReason | None


class ChatChunk(ResponseModel):
    """An event of a stream of ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
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
    logprobs: CompletionLogprobLists | None
    finish_reason: StopReason | None
    """Null only in a stream, before the end."""


class CompletionReply(ResponseModel):
    """The answer to ``POST /v1/completions``, and each event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    """In a stream, if requested: on the last event, which has no choices; null on the others."""


ModelCapability = Literal["completion", "chat", "tools", "structured_output", "reasoning", "embeddings"]


class ModelReply(ResponseModel):
    """A model."""

    id: str
    root: str
    """The id of the model that answers, if ``id`` is another of its names."""
    object: Literal["model"]
    created: int
    owned_by: str
    status: Literal["unloaded", "loading", "ready", "draining"]
    """``ready``: it answers; ``draining``: it finishes what it has; ``unloaded``: an administrator may load it."""
    max_model_len: int | None
    """The largest number of tokens of a prompt and its answer together; null if it is not known yet."""
    capabilities: list[ModelCapability]
    """What requests may ask for: ``completion``, ``chat`` if the model has a chat template, ``tools`` and ``reasoning``
    if the model has them and the server knows how it writes them, ``structured_output`` if its engine and tokenizer
    take grammars, and ``embeddings``. A request for anything else, such as an image (``vision``), gets a 400."""
    default_sampling_params: dict[str, float]
    """The defaults for fields of a request that differ from OpenAI's: recommended by the model's authors, or set with
    ``generation_config``."""


class ModelsReply(ResponseModel):
    """The models that the server knows, those that answer first."""

    object: Literal["list"]
    data: list[ModelReply]


class HealthReply(ResponseModel):
    """Whether the server can answer."""

    status: HealthState
    reason: str


class VersionReply(ResponseModel):
    """The version of Parallax."""

    version: str


class TokensReply(ResponseModel):
    """The answer to ``POST /tokenize``."""

    count: int
    """The number of tokens."""
    max_model_len: int
    """The largest number of tokens of a prompt and its answer together."""
    tokens: list[int]
    token_strs: list[str] | None
    """Each token as the vocabulary writes it, if requested."""


class StopReply(ResponseModel):
    """The answer to ``POST /v1/stop_request``."""

    id: str
    stopped: Literal[True]


class TextReply(ResponseModel):
    """The answer to ``POST /detokenize``."""

    prompt: str
