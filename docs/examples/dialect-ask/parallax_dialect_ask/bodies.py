"""Reads questions as chats of one turn."""

from __future__ import annotations

from parallax_chat_requests.engine_request import read_chat
from parallax_chat_requests.request_models import ChatRequest
from parallax_core.api.bodies import BodyReader, BodyRequest, ParsedBody, Strict, check_lengths


class Question(Strict):
    """The body of ``POST /v1/ask``."""

    question: str
    model: str | None = None
    most_tokens: int | None = None
    """The most tokens of the answer."""


def read_question(reader: BodyReader, body: Question, ask: BodyRequest) -> ParsedBody:
    """Return the request to the engine for a question."""
    turn = {"role": "user", "content": body.question}
    chat = ChatRequest.model_validate({"model": body.model, "messages": [turn], "max_tokens": body.most_tokens})
    return check_lengths(read_chat(reader.text, chat, reader.parser), ask, "question", "ask in fewer words")
