"""The schemas of responses of the Messages routes, for ``/openapi.json`` and for tests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from parallax_core.api.dialect import ResponseModel

MessageStop = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class CacheCreation(ResponseModel):
    """The tokens of `MessageUsage.cache_creation_input_tokens`, by the time for which they are kept."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class ThinkingDetails(ResponseModel):
    """Details of the answer's tokens."""

    thinking_tokens: int


class MessageDeltaUsage(ResponseModel):
    """The token counts at the end of a stream; the prompt has the sum of the three counts of input."""

    input_tokens: int
    """Tokens of the prompt that were computed and not pinned; before the end, all of them."""
    cache_creation_input_tokens: int
    """Tokens of the prompt that were computed, and are pinned now because of ``cache_control``."""
    cache_read_input_tokens: int
    """Tokens of the prompt that were not computed because the prefix cache had them."""
    output_tokens: int
    output_tokens_details: ThinkingDetails | None
    """None at the beginning of a stream."""
    server_tool_use: None
    """There are no tools that the server runs."""


class MessageUsage(MessageDeltaUsage):
    """The token counts of a message."""

    cache_creation: CacheCreation | None
    """None at the beginning of a stream."""
    inference_geo: None
    service_tier: Literal["standard"]
    speed: None


class MessageText(ResponseModel):
    """A block of text."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[None], Field(max_length=0)]
    """Empty: the published schema requires the field, and clients that take none for an error read a list."""


class MessageThinking(ResponseModel):
    """The reasoning before an answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str
    """A digest of the text, for clients that expect one; it is not checked."""


class DirectCaller(ResponseModel):
    """The model itself, which calls a tool without a program."""

    type: Literal["direct"]


class MessageToolUse(ResponseModel):
    """A tool call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    """The arguments; empty if the answer ended within them."""
    caller: DirectCaller
    toolset_name: None


MessageContentPart = MessageText | MessageThinking | MessageToolUse


class MessageReply(ResponseModel):
    """The answer to ``POST /v1/messages``."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageContentPart]
    """No block if the answer has no text."""
    stop_reason: MessageStop | None
    """Null only at the beginning of a stream."""
    stop_sequence: str | None
    """The string of ``stop_sequences`` that ended the answer."""
    stop_details: None
    """Details of a refusal; nothing is refused here."""
    container: None
    diagnostics: None
    usage: MessageUsage


class MessageStart(ResponseModel):
    """The first event of a stream."""

    type: Literal["message_start"]
    message: MessageReply


class Ping(ResponseModel):
    """An event that shows that the server is there."""

    type: Literal["ping"]


class ContentStart(ResponseModel):
    """The beginning of a block."""

    type: Literal["content_block_start"]
    index: int
    content_block: MessageContentPart


class TextDelta(ResponseModel):
    """The next piece of a text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(ResponseModel):
    """The next piece of the reasoning."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(ResponseModel):
    """The signature of the reasoning, after its last piece."""

    type: Literal["signature_delta"]
    signature: str


class InputDelta(ResponseModel):
    """The next piece of the arguments of a tool call."""

    type: Literal["input_json_delta"]
    partial_json: str


class ContentDelta(ResponseModel):
    """The next piece of a block."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class ContentStop(ResponseModel):
    """The end of a block."""

    type: Literal["content_block_stop"]
    index: int


class MessageEnd(ResponseModel):
    """How a message ended."""

    stop_reason: MessageStop
    stop_sequence: str | None
    stop_details: None
    container: None


class MessageDelta(ResponseModel):
    """The event after the last block."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageDeltaUsage


class MessageEnded(ResponseModel):
    """The last event of a stream."""

    type: Literal["message_stop"]


class MessageErrorDetail(ResponseModel):
    """An error in Anthropic's form."""

    type: str
    """Anthropic's type of the error."""
    message: str
    """The error, with the name of the field, and the next step."""


class MessageErrorReply(ResponseModel):
    """The response for every error of the Messages routes, and the last event of a stream that breaks."""

    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str


class TokenCountReply(ResponseModel):
    """The answer to ``POST /v1/messages/count_tokens``."""

    input_tokens: int
    """The tokens of the prompt."""


MessageEvent = (
    MessageStart | Ping | ContentStart | ContentDelta | ContentStop | MessageDelta | MessageEnded | MessageErrorReply
)
"""An event of a stream."""
