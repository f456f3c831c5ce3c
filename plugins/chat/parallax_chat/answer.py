"""Reads the streamed answers of a chat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parallax_client.client import Client


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A piece of an answer in a chat."""

    text: str
    is_reasoning: bool = False


def stream_answer(client: Client, body: dict[str, Any]) -> Iterator[AnswerPiece]:
    """Yield the pieces of the answer to a chat request.

    Raises:
        ParallaxError: as `Client.stream` does.
    """
    for choice in client.stream("/chat/completions", body):
        delta = choice["delta"]
        if reasoning := delta.get("reasoning"):
            yield AnswerPiece(reasoning, is_reasoning=True)
        if content := delta.get("content"):
            yield AnswerPiece(content)
