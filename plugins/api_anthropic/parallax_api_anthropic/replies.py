"""The objects of the Messages routes, from which answers are written and described."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from parallax_core.api.bodies import ResponseModel

MessageStop = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class CacheCreation(ResponseModel):
    """The tokens of `MessageUsage.cache_creation_input_tokens`, by the time for which they are kept."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


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
    server_tool_use: None = None
    """There are no tools that the server runs."""


class MessageUsage(MessageDeltaUsage):
    """The token counts of a message."""

    cache_creation: CacheCreation | None = None
    """None at the beginning of a stream."""
    inference_geo: None = None
    service_tier: Literal["standard"] = "standard"
    speed: None = None


class MessageText(ResponseModel, tag_field="type", tag="text"):
    """A block of text."""

    text: str = ""
    citations: Annotated[list[None], msgspec.Meta(max_length=0)] = msgspec.field(default_factory=list)
    """Empty: the published schema requires the field, and clients that take none for an error read a list."""


class MessageThinking(ResponseModel, tag_field="type", tag="thinking"):
    """The reasoning before an answer."""

    thinking: str = ""
    signature: str = ""
    """A digest of the text, for clients that expect one; it is not checked."""


class DirectCaller(ResponseModel, tag_field="type", tag="direct"):
    """The model itself, which calls a tool without a program."""


class MessageToolUse(ResponseModel, tag_field="type", tag="tool_use"):
    """A tool call."""

    id: str
    name: str
    input: dict[str, Any] = msgspec.field(default_factory=dict)
    """The arguments; empty if the answer ended within them."""
    caller: DirectCaller = msgspec.field(default_factory=DirectCaller)
    toolset_name: None = None


MessageContentPart = MessageText | MessageThinking | MessageToolUse


class MessageReply(ResponseModel, kw_only=True):
    """The answer to ``POST /v1/messages``."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[MessageContentPart]
    """No block if the answer has no text."""
    stop_reason: MessageStop | None = None
    """Null only at the beginning of a stream."""
    stop_sequence: str | None = None
    """The string of ``stop_sequences`` that ended the answer."""
    stop_details: None = None
    """Details of a refusal; nothing is refused here."""
    container: None = None
    diagnostics: None = None
    usage: MessageUsage


class MessageStart(ResponseModel, tag_field="type", tag="message_start"):
    """The first event of a stream."""

    message: MessageReply


class Ping(ResponseModel, tag_field="type", tag="ping"):
    """An event that shows that the server is there."""


class ContentStart(ResponseModel, tag_field="type", tag="content_block_start"):
    """The beginning of a block."""

    index: int
    content_block: MessageContentPart


class TextDelta(ResponseModel, tag_field="type", tag="text_delta"):
    """The next piece of a text."""

    text: str


class ThinkingDelta(ResponseModel, tag_field="type", tag="thinking_delta"):
    """The next piece of the reasoning."""

    thinking: str


class SignatureDelta(ResponseModel, tag_field="type", tag="signature_delta"):
    """The signature of the reasoning, after its last piece."""

    signature: str


class InputDelta(ResponseModel, tag_field="type", tag="input_json_delta"):
    """The next piece of the arguments of a tool call."""

    partial_json: str


class ContentDelta(ResponseModel, tag_field="type", tag="content_block_delta"):
    """The next piece of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class ContentStop(ResponseModel, tag_field="type", tag="content_block_stop"):
    """The end of a block."""

    index: int


class MessageEnd(ResponseModel):
    """How a message ended."""

    stop_reason: MessageStop
    stop_sequence: str | None
    stop_details: None = None
    container: None = None


class MessageDelta(ResponseModel, tag_field="type", tag="message_delta"):
    """The event after the last block."""

    delta: MessageEnd
    usage: MessageDeltaUsage


class MessageEnded(ResponseModel, tag_field="type", tag="message_stop"):
    """The last event of a stream."""


class MessageErrorDetail(ResponseModel):
    """An error in Anthropic's form."""

    type: str
    """Anthropic's type of the error."""
    message: str
    """The error, with the name of the field, and the next step."""


class MessageErrorReply(ResponseModel, tag_field="type", tag="error"):
    """The response for every error of the Messages routes, and the last event of a stream that breaks."""

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
