"""Fetches models to the server's machine, so that loading them later takes less time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from parallax_core.api import ParallaxError, Progress, Unit
from parallax_core.api.dialect import ChangeRefused
from parallax_operate.catalog import ServerCatalog

MOST_RUNNING = 4
"""The most models that are fetched at the same time."""
MOST_KEPT = 16
"""The most downloads that are shown, with those that have ended."""
State = Literal["running", "done", "failed", "stopped"]

logger = logging.getLogger(__name__)


class DownloadStopped(Exception):
    """An administrator has stopped a download."""


@dataclass(eq=False, slots=True)
class Download:
    """A model that is fetched, or was."""

    model: str
    state: State = "running"
    task: str = ""
    """What is being done."""
    done: int = 0
    total: int | None = None
    """None: unknown."""
    unit: Unit = "bytes"
    error: str = ""
    is_stopped: bool = False
    """Whether it is to end."""
    began: float = field(default_factory=time.monotonic)

    def report(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Note how far it is; see `parallax_core.api.Progress`. Raises DownloadStopped if it is to end."""
        self.task, self.done, self.total, self.unit = task, done, total, unit
        if self.is_stopped:
            raise DownloadStopped


class Downloads:
    """The downloads of a server. Belongs to one event loop.

    Args:
        catalog: has the sources of models.
        fetch: fetches a model, on any thread; None: as ``catalog`` does.
    """

    def __init__(self, catalog: ServerCatalog, fetch: Callable[[str, Progress], object] | None = None) -> None:
        self.catalog = catalog
        self._fetch = fetch or catalog.fetch
        self._tasks: set[asyncio.Task[None]] = set()
        self.recent: list[Download] = []
        """The latest first."""

    def begin(self, model: str) -> Download:
        """Begin to fetch a model; one that is being fetched goes on.

        Raises:
            ChangeRefused: if too many are fetched.
        """
        running = [each for each in self.recent if each.state == "running"]
        if found := next((each for each in running if each.model == model), None):
            return found
        if len(running) >= MOST_RUNNING:
            raise ChangeRefused(f"{len(running)} models are being fetched already", "wait for one, or stop one")
        made = Download(model)
        self.recent = [made, *(each for each in self.recent if each.model != model)][:MOST_KEPT]
        self._tasks.add(task := asyncio.create_task(self._run(made)))
        task.add_done_callback(self._tasks.discard)
        return made

    def stop(self, model: str) -> Download | None:
        """Stop fetching a model; what has come stays. Return its download; None: it is not known."""
        found = next((each for each in self.recent if each.model == model), None)
        if found is not None:
            found.is_stopped = True
        return found

    async def close(self) -> None:
        """Stop all, and wait for their ends."""
        for each in self.recent:
            each.is_stopped = True
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, download: Download) -> None:
        try:
            await asyncio.to_thread(self._fetch, download.model, download.report)
        except DownloadStopped:
            download.state = "stopped"
        except ParallaxError as error:
            download.state, download.error = "failed", error.message
        except Exception as error:
            logger.exception("a model could not be fetched model=%s", download.model)
            download.state, download.error = "failed", f"{type(error).__name__}: {error}"
        else:
            download.state = "done"
        logger.info("fetched model=%s state=%s", download.model, download.state)
