"""How a server opens further models; the machines that have joined do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from parallax_core.api.dialect import HostedModel


class ModelHost(Protocol):
    """Opens models beside those that are open."""

    def name(self, model: str) -> str:
        """Return what clients call a model.

        Raises:
            ParallaxError: if no source has models of that form.
        """

    async def open(self, model: str) -> HostedModel:
        """Fetch what describes a model, and return it, not started.

        Raises:
            ParallaxError: if it cannot be found, fetched or read.
        """

    def remember(self, models: Sequence[str]) -> None:
        """Keep which models are loaded, for the time after a restart. May wait for a disk, and never raises."""

    def recall(self) -> Sequence[str]:
        """Return the models that were loaded before a restart, without the first one. May wait for a disk."""
