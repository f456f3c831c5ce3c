"""How nodes find each other without an address: an optional part of a transport.

A node asks a question on all networks of its machine, and nodes that have an answer give it. Core makes questions and
answers, and authenticates them; a transport carries them. Everything that arrives may come from strangers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

MOST_QUESTION_BYTES = 64
"""The most bytes of a question."""
MOST_ANSWER_BYTES = 576
"""The most bytes of an answer."""

FindAnswer = Callable[[bytes], bytes | None]
"""Returns the answer to a question, which may be any bytes; None: nothing is sent. It does not block."""


class Discovery(Protocol):
    """The part of a transport that finds nodes without an address; found by `TransportSpec.discovery`."""

    def answering(self, address: str, find_answer: FindAnswer) -> AbstractAsyncContextManager[None]:
        """Answer questions until the end of the context.

        Nothing is sent without a question, and an answer that is too long is not sent. However many questions arrive,
        they take little of the event loop's time: some are ignored if need be.

        Args:
            address: where the node listens; machines that cannot reach it, as one on loopback, need no answer.
            find_answer: returns the answer to a question.

        Raises:
            ParallaxError: if no questions can arrive; with a hint.
        """

    def ask(self, question: bytes) -> AsyncGenerator[bytes, None]:
        """Ask on all networks of this machine, again and again, and yield each answer, until it is closed.

        An answer may come several times, from several nodes, or from strangers who invent it; at most
        `MOST_ANSWER_BYTES` long, and only to a question of this call. Between two questions are at most 0.5 seconds.

        Raises:
            ValueError: if the question is too long.
            ParallaxError: if this machine has no network on which it can ask.
        """
