"""A reader of bodies without processes."""

from __future__ import annotations

from parallax_core.api import Grammar
from parallax_core.server.body_messages import BodyRequest, BodyResult
from parallax_core.server.body_reader import BodyReader
from parallax_core.server.chat_grammar import check_answer


class LocalReader:
    """Reads bodies in the calling task; it blocks the event loop."""

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader

    async def start(self) -> None:
        """Do nothing."""

    def start_others(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    @property
    def takes_grammars(self) -> bool:
        """Whether bodies may ask for a grammar; see `BodyReading`."""
        return self._reader.text.grammars.can_prepare()

    async def read(self, ask: BodyRequest) -> BodyResult:
        """Read a body; see `BodyReading`."""
        return await check_answer(self._reader.answer(ask), self._check, is_able=self.takes_grammars)

    async def _check(self, grammar: Grammar) -> None:
        self._reader.text.grammars.compile(grammar)
