"""Keeps which machines get no layers because an operator has drained them."""

from __future__ import annotations

import asyncio
import logging

from parallax_cluster.node.coordinator.plan_store import PlanStore
from parallax_core.api import ParallaxError

logger = logging.getLogger(__name__)

DRAINED = "it is drained; `parallax nodes resume` takes it back"
"""Why its node is not used."""


class DrainedMachines:
    """The names of drained machines. Belongs to one event loop."""

    def __init__(self, store: PlanStore | None = None) -> None:
        """Keep them in ``store`` for a restart; None: they are forgotten then."""
        self._store = store
        self.names: set[str] = set()
        """The machines that are drained now, whether they have joined or not."""
        try:
            self.names.update(store.find_drained() if store is not None else ())
        except ParallaxError as error:
            logger.warning("%s; machines that were drained may be used", error.message)

    async def note(self, machine: str, *, is_drained: bool) -> None:
        """Drain a machine, or take it back. Idempotent.

        Raises:
            ParallaxError: if that cannot be kept; nothing has changed then.
        """
        if self._store is not None:
            await asyncio.to_thread(self._store.note_drained, machine, is_drained=is_drained)
        if is_drained:
            self.names.add(machine)
        else:
            self.names.discard(machine)
        logger.info("machine is %s machine=%s", "drained" if is_drained else "used again", machine)
