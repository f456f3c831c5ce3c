"""The schemas of request bodies in Anthropic's Messages API; unsupported fields are refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, Literal

from pydantic import Field

from parallax_core.server.chat_messages import ChatRequestMessage
from parallax_core.server.fields import (
    CountField,
    Stop,
    Strict,
    TextField,
)
from parallax_core.server.request_models import Neutral, Tolerant

KEEPS_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
"""An edit of the context that removes nothing."""

NEUTRAL_PROMPT: Neutral = {
    "context_management": ({"edits": []}, {"edits": [KEEPS_THINKING]}),
    "mcp_servers": ([],),
    "output_config": ({},),
    "speed": ("standard",),
    "thinking": ({"type": "disabled"}, {"type": "adaptive"}),
    "tool_choice": ({"type": "none"}, {"type": "auto"}),
    "tools": ([],),
}
"""Unsupported fields that concern the prompt, with the values that are accepted because they have no effect."""

NEUTRAL_MESSAGES: Neutral = {
    **NEUTRAL_PROMPT,
    "container": (),
    "diagnostics": (),
    "inference_geo": (),
    "service_tier": ("auto", "standard_only"),
}
"""The same for a request for an answer."""

BILLING_LINE = "x-anthropic-billing-header:"
"""The beginning of a line that Claude Code puts before the system prompt. It is different in every request and means
nothing to a model. (Claude Code, "Gateway protocol reference", system prompt attribution block.)"""


class CacheControl(Strict):
    """Marks the end of a prefix to be cached; every prefix is, as long as there is room, so it has no effect."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Literal["global"] | None = None


class MessagePart(Strict):
    """A block of text."""

    type: Literal["text"]
    text: TextField
    cache_control: CacheControl | None = None
    citations: Annotated[list[None], Field(max_length=0)] | None = None


System = TextField | Annotated[list[MessagePart], Field(fail_fast=True)]


class RequestMessage(Strict):
    """One turn of the conversation."""

    place = "messages."

    role: Literal["user", "assistant", "system"]
    content: TextField | Annotated[list[MessagePart], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        """The text of its blocks."""
        return join_text(self.content)


class Metadata(Strict):
    """Labels without effect on the answer."""

    place = "metadata."

    user_id: TextField | None = None


class CountTokensRequest(Tolerant):
    """The body of ``POST /v1/messages/count_tokens``: the fields of a request that its prompt is made of."""

    neutral = NEUTRAL_PROMPT

    model: TextField
    """The id of the model served; another id gets a 404."""
    messages: Annotated[list[RequestMessage], Field(min_length=1, fail_fast=True)]
    """Turns with ``role`` (``user``, ``assistant``, ``system``) and ``content`` (a string, or blocks of type ``text``).
    Neighbours of the same role are joined; the answer continues a last turn of the role ``assistant``."""
    system: System | None = None
    """The system prompt: a string, or blocks of type ``text``."""
    cache_control: CacheControl | None = None
    """Accepted, here and on blocks, without effect: every prompt is cached as long as there is room."""

    def list_messages(self, *, keeps_billing_line: bool) -> list[ChatRequestMessage]:
        """Return the conversation as that of a chat request, the system prompt first.

        Args:
            keeps_billing_line: keep the line of the system prompt that changes with every request.
        """
        system = join_text(self.system or "", drops_billing_line=not keeps_billing_line)
        turns = [("system", system)] if system else []
        turns += [(message.role, message.text) for message in self.messages]
        grouped = groupby(turns, key=lambda turn: turn[0])
        texts = [(role, "\n".join(text for _, text in group)) for role, group in grouped]
        return [ChatRequestMessage.model_construct(role=role, content=text) for role, text in texts]

    @property
    def continues_last(self) -> bool:
        """Whether the answer continues the last turn."""
        return self.messages[-1].role == "assistant"


class MessagesRequest(CountTokensRequest):
    """The body of ``POST /v1/messages``."""

    neutral = NEUTRAL_MESSAGES

    max_tokens: CountField
    """The largest number of tokens of the answer; if the context holds fewer, the answer ends there, and its
    ``stop_reason`` is ``model_context_window_exceeded``."""
    stop_sequences: Annotated[list[Stop], Field(max_length=16)] | None = None
    """Up to 16 strings; the answer ends before the first of them."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """0 to 2; 0, like anything below a millionth, always takes the most probable token."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Keep the most probable tokens whose probabilities sum to at least this; above 0, at most 1."""
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Keep the k most probable tokens; 0 keeps all."""
    stream: bool | None = None
    """Send the answer as server-sent events, as it is generated."""
    metadata: Metadata | None = None
    """``user_id``: a label for the client's own use, without effect on the answer."""


def join_text(content: str | Iterable[MessagePart], *, drops_billing_line: bool = False) -> str:
    """Return the text of a string or of blocks, each on a line of its own."""
    texts = [content] if isinstance(content, str) else [block.text for block in content]
    if drops_billing_line:
        texts = [text for text in map(drop_billing_line, texts) if text]
    return "\n".join(texts)


def drop_billing_line(text: str) -> str:
    """Return the text of a system prompt without the line that changes with every request, if it begins with it."""
    return text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING_LINE) else text
