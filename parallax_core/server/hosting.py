"""How the server starts and stops the models that it serves; `deploy` implements it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from parallax_core.base.errors import SHUTTING_DOWN
from parallax_core.contracts.status import NodeProgress
from parallax_core.server.service import Service


class HostedModel(Protocol):
    """A model that is being opened, or is open."""

    @property
    def service(self) -> Service:
        """What answers requests for it."""

    async def start(self) -> None:
        """Open it, and return once it can answer.

        Raises:
            ParallaxError: if it cannot; the caller stops it then.
        """

    async def stop(self, farewell: str = SHUTTING_DOWN) -> None:
        """End its requests, whose clients are told ``farewell``, and release its memory on all nodes.

        Legal at any time.
        """

    def list_progress(self) -> Sequence[NodeProgress]:
        """Return what each node has of it, or is about to load."""


@dataclass(frozen=True, slots=True)
class FixedModel:
    """The model of a server that serves one, on the stages that the user chose."""

    service: Service

    async def start(self) -> None:
        """Start the engine and the reader of bodies."""
        await asyncio.gather(self.service.engine.start(), self.service.reader.start())
        self.service.reader.start_others()

    async def stop(self, farewell: str = SHUTTING_DOWN) -> None:
        """Stop both, when the server ends: nothing else stops this model."""
        del farewell
        await asyncio.gather(self.service.engine.stop(), self.service.reader.stop())

    def list_progress(self) -> Sequence[NodeProgress]:
        """Return nothing: the status of the server's start says how far it is."""
        return ()
