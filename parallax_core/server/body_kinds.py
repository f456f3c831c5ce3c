"""Reads the bodies of core's own dialects; see `BodySpec.read`."""

from __future__ import annotations

from parallax_core.server.body_messages import BodyRequest, ParsedBody
from parallax_core.server.body_reader import BodyReader, check_lengths
from parallax_core.server.engine_request import read_chat, read_completion
from parallax_core.server.request_models import ChatRequest, CompletionRequest


def read_chat_body(reader: BodyReader, body: ChatRequest, ask: BodyRequest) -> ParsedBody:
    """Read a conversation."""
    return check_lengths(read_chat(reader.text, body, reader.parser), ask, "messages", "shorten the conversation")


def read_completion_body(reader: BodyReader, body: CompletionRequest, ask: BodyRequest) -> ParsedBody:
    """Read one prompt or several."""
    return check_lengths(read_completion(reader.text, body), ask, "prompt", "shorten it")
