"""Answers machines that look for this head; see `cluster.membership.discovery`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from parallax_cluster.membership.discovery import write_answer
from parallax_core.api import ParallaxError

logger = logging.getLogger(__name__)

FRESH_S = 1.0
"""Seconds for which codes and addresses are not read again."""


@dataclass(frozen=True, slots=True)
class FoundHead:
    """The answer of a head to nodes that know one of its secrets."""

    secrets: Mapping[bytes, bytes] = field(default_factory=dict)
    """By fingerprint; see `index_secrets`."""
    head: bytes = b""
    """Its description; see `JoinMethod.describe_head`."""


class HeadAnswers:
    """Answers questions from memory. Codes and addresses are read on a thread, and only when somebody asks.

    Whoever asks repeats the question, so that the first one may be answered by what is old.
    """

    def __init__(self, look: Callable[[], FoundHead]) -> None:
        """Answer by what ``look`` returns; it is called on a thread. Belongs to one event loop."""
        self._look = look
        self._found = FoundHead()
        self._looked_at = -FRESH_S
        self._looking: asyncio.Task[None] | None = None

    def reply(self, question: bytes) -> bytes | None:
        """Return the answer to a question, or None without one so far."""
        now = asyncio.get_running_loop().time()
        if self._looking is None and now >= self._looked_at + FRESH_S:
            self._looking = asyncio.create_task(self._refresh(now))
        return write_answer(question, self._found.secrets, self._found.head)

    async def close(self) -> None:
        """Read no more. Idempotent."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _refresh(self, now: float) -> None:
        try:
            self._found = await asyncio.to_thread(self._look)
        except ParallaxError as error:
            logger.warning("machines that look for this head are not answered: %s", error.message)
        finally:
            self._looked_at, self._looking = now, None
