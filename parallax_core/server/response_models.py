"""What answers look like: the description clients read at ``/openapi.json``, which tests hold every answer to.

Nothing is made of these models while serving: answers are written directly.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

StopReason = Literal["stop", "length"]


class ResponseModel(BaseModel):
    """A part of an answer; it has exactly these fields."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class ErrorDetail(ResponseModel):
    """What is wrong."""

    message: str
    """One sentence, and what to do next."""
    type: str
    """The kind of error, in OpenAI's words."""
    param: str | None
    """The field at fault, with dots where it lies deeper."""
    code: str | None
    """The same for programs, where there is a word for it."""


class ErrorReply(ResponseModel):
    """Every error."""

    error: ErrorDetail


class CachedTokens(ResponseModel):
    """What the prompt's tokens were."""

    cached_tokens: int
    """Those that were not computed, since a cache held them."""


class Usage(ResponseModel):
    """What a request cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class ShownToken(ResponseModel):
    """A token and its log-probability."""

    token: str
    """As text, or its bytes in hexadecimal where they are no text by themselves."""
    logprob: float
    """Before penalties and filters; -9999 stands for minus infinity."""
    bytes: list[int]


class RankedToken(ShownToken):
    """A token of an answer, and the most probable ones in its place."""

    top_logprobs: list[ShownToken]


class ChatLogprobs(ResponseModel):
    """The log-probabilities of an answer in a chat."""

    content: list[RankedToken]
    refusal: None


class ChatMessage(ResponseModel):
    """An answer in a chat."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(ResponseModel):
    """One of the answers wanted."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: StopReason


class ChatReply(ResponseModel):
    """The answer to ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    """Seconds since 1970."""
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(ResponseModel):
    """What comes next of an answer in a chat."""

    role: Literal["assistant"] = "assistant"
    content: str = ""


class ChatChunkChoice(ResponseModel):
    """What comes next of one of the answers wanted."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: StopReason | None


class ChatChunk(ResponseModel):
    """An event of a stream of ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    """On the last one, if asked for; it has no choices."""


class CompletionLogprobLists(ResponseModel):
    """The log-probabilities of a continuation, token by token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Where each token begins, in characters."""


class CompletionChoice(ResponseModel):
    """One of the continuations wanted, or what comes next of it."""

    index: int
    text: str
    logprobs: CompletionLogprobLists | None
    finish_reason: StopReason | None
    """None only in a stream, before the end."""


class CompletionReply(ResponseModel):
    """The answer to ``POST /v1/completions``, and each event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    """In a stream on the last event, if asked for; it has no choices."""


class ModelReply(ResponseModel):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    default_sampling_params: dict[str, float]
    """What holds where a request leaves it open, by the fields of a request, as far as it differs from OpenAI's API:
    what the model's authors recommend, or the server's ``--generation-config``."""


class ModelsReply(ResponseModel):
    """All models served."""

    object: Literal["list"]
    data: list[ModelReply]


class HealthReply(ResponseModel):
    """Whether the server can answer."""

    status: Literal["starting", "ready", "draining", "failed"]
    reason: str


class VersionReply(ResponseModel):
    """The version of Parallax."""

    version: str


class TokensReply(ResponseModel):
    """The answer to ``POST /tokenize``."""

    count: int
    """How many tokens there are."""
    max_model_len: int
    """The most tokens of a prompt and its answer together."""
    tokens: list[int]
    token_strs: list[str] | None
    """Each token as the vocabulary has it, if that was asked for."""


class TextReply(ResponseModel):
    """The answer to ``POST /detokenize``."""

    prompt: str
