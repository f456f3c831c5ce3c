"""Building a pipeline anew after a loss, as long as there is hope."""

from __future__ import annotations

import asyncio
import logging

from parallax_core.base.errors import ParallaxError, StageLost
from parallax_core.contracts.stage import StageInfo
from parallax_core.engine.head import Head
from parallax_core.node.company import Company

logger = logging.getLogger(__name__)

MOST_LOSSES = 5
"""So many losses without a token in between are no accident."""
WAITS_S = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Before each attempt to open the stages."""


class Healing:
    """Opens the stages of a company again, and has its head begin a new epoch on them."""

    def __init__(self, company: Company, head: Head) -> None:
        self._company = company
        self._head = head
        self._num_losses = 0
        self._num_tokens = 0

    def may_heal(self) -> bool:
        """Return whether to go on after one more loss."""
        tokens = self._head.stats().output_tokens
        self._num_losses = 1 if tokens > self._num_tokens else self._num_losses + 1
        self._num_tokens = tokens
        return self._company.heals and self._num_losses <= MOST_LOSSES

    async def heal(self) -> tuple[StageInfo, ...]:
        """Open the stages, trying several times, and return what they say of themselves.

        Raises:
            StageLost: if they cannot be opened.
        """
        for wait_s in WAITS_S:
            await asyncio.sleep(wait_s)
            try:
                infos = await self._company.open()
            except ParallaxError as error:
                logger.warning("pipeline cannot be built: %s", error.message)
                reason = error
            else:
                self._head.restart(infos)
                return infos
        message = f"the pipeline could not be built again: {reason.message}"
        raise StageLost(message, reason.hint or "the log says more; start the server again")
