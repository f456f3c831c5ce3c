"""Describes what this machine does for a server, for the terminal of ``parallax join``."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from parallax_core.api import Progress, Stage, Unit
from parallax_core.api.cli import Display, watching
from parallax_core.api.cli import describe_progress as describe
from parallax_core.node.worker.rejoin import HeadPlace
from parallax_core.node.worker.session import WorkerSession
from parallax_core.node.worker.shared_layers import OpenStage
from parallax_core.wire.membership import Assign


class LoadWatch:
    """Notes what a machine loads, and how far it is. Stages are opened on threads of their own."""

    def __init__(self) -> None:
        self.lines: dict[int, str] = {}
        """A line for each thing that is being loaded, by a number."""
        self._last = 0

    def watch(self, open_stage: OpenStage) -> OpenStage:
        """Return ``open_stage``, whose calls are noted."""

        def watched(assign: Assign, progress: Progress) -> Stage:
            number = self._last = self._last + 1
            what = describe_layers(assign)
            self.lines[number] = f"loading {what}"

            def note(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
                self.lines[number] = f"loading {what}: {task}: {describe(done, total, unit)}"
                progress(task, done, total, unit)

            try:
                return open_stage(assign, note)
            finally:
                del self.lines[number]

        return watched


class JoinView:
    """Looks at the session of a machine at intervals."""

    def __init__(
        self, place: HeadPlace, session: WorkerSession, loads: LoadWatch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place, self._session, self._loads, self._clock = place, session, loads, clock
        self._counted: tuple[float, int] | None = None
        """When tokens were counted last, and how many; None: they were not."""

    async def look(self) -> list[str]:
        """Return the lines to show."""
        return [f"{self._place.node}: {self._describe_link()}", *self._describe_work()]

    def _describe_link(self) -> str:
        if self._session.is_leaving:
            return "leaving, once others have its layers; Ctrl-C once more ends it at once"
        if self._session.is_joined:
            return f"joined the server at {self._place.address}"
        return f"connecting to the server at {self._place.address}"

    def _describe_work(self) -> list[str]:
        if loading := list(self._loads.lines.values()):
            return loading
        held = self._session.held
        if held is None:
            self._counted = None
            return (
                ["no layers yet: `parallax nodes` shows what the server waits for"] if self._session.is_joined else []
            )
        use = f"{held.runtime.num_open} requests, {self._count(held.runtime.num_tokens):.0f} tokens/s"
        return [f"{describe_layers(held.assign)}: {use if self._session.is_needed else 'loaded, and not in use'}"]

    def _count(self, tokens: int) -> float:
        """Return the tokens per second since the last look."""
        now = self._clock()
        then, before = self._counted or (now, tokens)
        self._counted = now, tokens
        return max(0, tokens - before) / (now - then) if now > then else 0.0


class JoinScreen:
    """Shows on a display what a machine loads and does; a `WorkerView`."""

    def __init__(self, display: Display) -> None:
        self._display, self._loads = display, LoadWatch()

    def watch(self, open_stage: OpenStage) -> OpenStage:
        """Return ``open_stage``, whose calls are noted."""
        return self._loads.watch(open_stage)

    def watching(self, place: HeadPlace, session: WorkerSession) -> AbstractAsyncContextManager[None]:
        """Return a context in which a session is shown."""
        return watching(self._display, JoinView(place, session, self._loads).look)


def describe_layers(assign: Assign) -> str:
    """Return what a server has assigned, such as ``layers 0-15 of org/model``."""
    if not assign.stop:
        return assign.model
    return f"layers {assign.start}-{assign.stop} of {assign.model}"
