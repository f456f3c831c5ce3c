"""Loads, unloads and switches the models of a running server."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from parallax_cluster.server.change_request import WantedChange
from parallax_cluster.server.model_host import ModelHost
from parallax_core.api import InvalidRequest, ParallaxError
from parallax_core.api.dialect import (
    ChangeRefused,
    ModelEntry,
    Overloaded,
    ServedModels,
    explain,
    list_ids,
)
from parallax_core.api.node import wait_for_ever

logger = logging.getLogger(__name__)

ChangeState = Literal["loading", "draining", "restoring", "done", "failed"]
LOOK_S = 0.05
"""Seconds between two looks at the requests of a model that is drained."""
MOST_WAITING = 256
"""The most requests that wait for models to be loaded."""
AGAIN_S = 30.0
"""Seconds for which a model that could not be loaded is not loaded again on demand."""
UNLOADED = "the model was unloaded"
"""The message to clients whose requests are ended by unloading their model."""
MOST_KEPT = 16
"""The changes that are still known, the latest with them."""


@dataclass(slots=True, eq=False)
class ModelChange:
    """A change under way, or the last one."""

    wanted: WantedChange
    model: ModelEntry
    replaces: ModelEntry | None
    state: ChangeState = "loading"
    error: str = ""
    """Why it failed."""
    id: str = field(default_factory=lambda: f"change-{secrets.token_hex(8)}")
    begun: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def took_s(self) -> float:
        """Seconds since it began, or that it took."""
        return (time.monotonic() if self.ended is None else self.ended) - self.begun


class ModelChanges:
    """Changes the models of a server, one change at a time. Belongs to one event loop.

    A model is loaded beside those that are loaded, and answers once it is ready; what fails leaves all others as they
    are. Unloading a model refuses new requests for it, waits until those it has have ended, and releases its memory.
    """

    def __init__(self, models: ServedModels, host: ModelHost | None, *, on_demand: bool = False) -> None:
        """Change ``models``, which ``host`` opens; None: they cannot be changed.

        With ``on_demand``, a request for a known model that is not loaded loads it.
        """
        self._models = models
        self._host = host
        self.recent: deque[ModelChange] = deque(maxlen=MOST_KEPT)
        """The change under way, or the last one, and those before it."""
        self._task: asyncio.Task[None] | None = None
        self._num_waiting = 0
        self._awaited: list[str] = []
        """The models that are still to be loaded again after a restart."""
        self._failed_at: dict[str, float] = {}
        """By id: when a model could not be loaded on demand."""
        self._kept: set[str] = set()
        """The ids of models that stay known even if they were never loaded."""
        self.on_demand = on_demand and host is not None
        if self.on_demand:
            models.load_on_demand = self._demand

    def know(self, models: Sequence[str]) -> None:
        """Let clients name models, which are not loaded yet, and stay known if they cannot be loaded.

        Raises:
            ParallaxError: if no source has models of that form.
        """
        for model in models:
            name = self._get_host().name(model)
            self._models.known.setdefault(name, ModelEntry(name, model))
            self._kept.add(name)

    @property
    def latest(self) -> ModelChange | None:
        """The change under way, or the last one; None: there was none."""
        return self.recent[0] if self.recent else None

    @property
    def is_under_way(self) -> bool:
        """Whether a change is under way."""
        return self._task is not None and not self._task.done()

    def begin(self, wanted: WantedChange) -> ModelChange:
        """Begin a change, and return it; `wait` waits for its end.

        Raises:
            ChangeRefused: if models cannot be changed now, or are already as is wanted.
            InvalidRequest: if the change makes no sense; it names the field.
            UnknownModel: if a model to unload or to forget is not known.
            ParallaxError: if a model to load has no possible name.
        """
        host = self._get_host()
        if self.is_under_way:
            assert self.latest is not None, "it has begun"
            name = self.latest.wanted.model
            message = f"another change is under way: {self.latest.wanted.action} {name!r}"
            raise ChangeRefused(message, "try again when it has ended: GET /v1/cluster/models shows it")
        replaces = self._find_replaced(wanted)
        change = ModelChange(wanted, self._find_model(wanted, host), replaces)
        works = {"load": self._load, "unload": self._unload, "switch": self._switch, "forget": self._forget}
        work = works[wanted.action]
        self.recent.appendleft(change)
        self._task = asyncio.create_task(self._run(work(change), change))
        return change

    async def run(self) -> None:
        """Once the server is ready, restore its models; give up the change under way when cancelled."""
        try:
            await self._models.started.wait()
            await self.restore()
            await wait_for_ever()
        finally:
            await self.stop()

    async def restore(self) -> None:
        """Load the models that were loaded before the server was restarted, one after the other."""
        if self._host is None:
            return
        self._awaited = list(await asyncio.to_thread(self._host.recall))
        while self._awaited:
            await self.wait()
            model = self._awaited.pop(0)
            try:
                self.know([model])
                self.begin(WantedChange(action="load", model=model))
            except ParallaxError as error:  # meanwhile someone may have loaded it
                logger.warning("the model %r is not loaded again: %s", model, error)
        await self.wait()

    async def wait(self) -> None:
        """Wait until no change is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Give up the change under way. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _begin_demanded(self, known: ModelEntry) -> None:
        change = self.begin(WantedChange(action="load", model=known.id))

        def note(_: object) -> None:
            if change.state == "failed":
                self._failed_at[known.id] = time.monotonic()

        assert self._task is not None, "it has begun"
        self._task.add_done_callback(note)

    def _get_host(self) -> ModelHost:
        if self._host is None:
            message = "this server serves one model, on the stages that were chosen when it was started"
            raise ChangeRefused(message, "a server started with `parallax run` changes its models")
        return self._host

    def _find_model(self, wanted: WantedChange, host: ModelHost) -> ModelEntry:
        """Return the model that is to be changed; one to load that was never named becomes known."""
        known = self._models.known
        self._check_name(wanted.model)
        if wanted.action == "unload":
            return self._find_ready(wanted.model)
        if wanted.action == "forget":
            return self._find_unloaded(wanted.model)
        found = self._models.look_up(wanted.model)
        if found is None:
            self._check_name(name := host.name(wanted.model))
            found = known.get(name) or ModelEntry(name, wanted.model)
        if found.hosted is not None:
            raise ChangeRefused(f"the model {found.id!r} is loaded already")
        known[found.id] = found
        return found

    def _check_name(self, name: str) -> None:
        """Refuse the name of a LoRA adapter, which would otherwise mean the model that it belongs to."""
        if name in self._models.adapters:
            raise ChangeRefused(f"{name!r} is a LoRA adapter, not a model", "POST /v1/unload_lora_adapter unloads it")

    def _find_replaced(self, wanted: WantedChange) -> ModelEntry | None:
        if wanted.action != "switch":
            return None
        if wanted.replaces is not None:
            self._check_name(wanted.replaces)
            return self._find_ready(wanted.replaces)
        loaded = self._models.loaded
        if len(loaded) == 1:
            return self._find_ready(loaded[0].id)
        message = f"'replaces' has to say which model is unloaded; loaded: {list_ids(loaded)}"
        raise InvalidRequest(message, "replaces")

    def _find_ready(self, model: str) -> ModelEntry:
        """Return a model that is to be unloaded.

        Raises:
            UnknownModel: if it is not known.
            ChangeRefused: if it is not loaded, or is still being loaded as the server starts.
        """
        found = self._models.get(model)
        if found.state != "ready":
            reason = "not loaded" if found.hosted is None else "still being loaded"
            raise ChangeRefused(f"the model {found.id!r} is {reason}")
        return found

    def _find_unloaded(self, model: str) -> ModelEntry:
        """Return a model that is to be forgotten.

        Raises:
            UnknownModel: if it is not known.
            ChangeRefused: if it is loaded, or being loaded.
        """
        found = self._models.get(model)
        if found.state != "unloaded":
            hint = f"unload it first: `parallax models unload {found.id}`"
            raise ChangeRefused(f"the model {found.id!r} is {found.state}", hint)
        return found

    async def _run(self, work: Coroutine[Any, Any, None], change: ModelChange) -> None:
        wanted = change.wanted
        logger.info("models change action=%s model=%s", wanted.action, change.model.id)
        try:
            await work
            loaded = [each.source for each in self._models.loaded]
            await asyncio.to_thread(self._get_host().remember, [*loaded, *self._awaited])
            change.state = "done"
            logger.info("models have changed action=%s model=%s", wanted.action, change.model.id)
        except ParallaxError as error:
            change.error = explain(error)
            logger.warning("models have not changed action=%s model=%s: %s", wanted.action, change.model.id, error)
        except Exception as error:  # the server goes on with the models it has, whatever the error is
            logger.exception("models have not changed")
            change.error = f"{type(error).__name__}: {error}"
        finally:
            change.ended = time.monotonic()
            if change.state != "done":
                change.state = "failed"

    async def _load(self, change: ModelChange) -> None:
        change.state = "loading"
        await self._open(change.model)

    async def _unload(self, change: ModelChange) -> None:
        change.state = "draining"
        await self._close(change.model, change.wanted.drain_s)

    async def _forget(self, change: ModelChange) -> None:
        del self._models.known[change.model.id]
        self._failed_at.pop(change.model.id, None)

    async def _switch(self, change: ModelChange) -> None:
        old = change.replaces
        assert old is not None, "it was found"
        if not change.wanted.drain_first:
            await self._load(change)
            change.state = "draining"
            await self._close(old, change.wanted.drain_s)
            return
        change.state = "draining"
        await self._close(old, change.wanted.drain_s)
        try:
            await self._load(change)
        except ParallaxError as error:
            change.state = "restoring"
            await self._restore(old, error)
            raise

    async def _restore(self, old: ModelEntry, error: ParallaxError) -> None:
        """Load a model again, because another one could not take its place.

        Raises:
            ParallaxError: if that fails, too; it says why both could not be loaded.
        """
        try:
            await self._open(old)
        except ParallaxError as again:
            message = f"{explain(error)}; and {old.id!r} could not be loaded again: {again.message}"
            raise ParallaxError(message, again.hint) from error

    async def _open(self, known: ModelEntry) -> None:
        """Load a model; if that fails, nothing of it is left, and one that never was loaded is not known any more."""
        known.state = "loading"
        try:
            known.hosted = await self._get_host().open(known.source)
            await known.hosted.start()
        except BaseException as error:
            hosted, known.hosted, known.state = known.hosted, None, "unloaded"
            known.error = explain(error) if isinstance(error, ParallaxError) else type(error).__name__
            if hosted is not None:
                await asyncio.shield(hosted.stop())
            if not (known.loaded or known.id in self._kept):  # it may be a typing error
                self._models.known.pop(known.id, None)
            raise
        self._models.note_ready(known)

    async def _close(self, known: ModelEntry, drain_s: float) -> None:
        """Unload a model once its requests have ended, or after ``drain_s`` seconds."""
        known.state = "draining"
        until = time.monotonic() + drain_s
        while not known.is_idle and time.monotonic() < until:  # noqa: ASYNC110 -- requests end in many places
            await asyncio.sleep(LOOK_S)
        hosted, known.hosted = known.hosted, None
        try:
            if hosted is not None:
                await asyncio.shield(hosted.stop(UNLOADED))
        finally:
            known.state = "unloaded"

    async def _demand(self, known: ModelEntry) -> None:
        """Load a model because a request needs it, after changes that are under way.

        Raises:
            ModelNotLoaded: if it cannot be loaded.
            UnknownModel: if it is forgotten meanwhile.
            Overloaded: if too many requests wait for models already.
        """
        if self._num_waiting >= MOST_WAITING:
            raise Overloaded(f"{self._num_waiting} requests wait for models to be loaded", "try again later")
        self._num_waiting += 1
        try:
            while True:
                await self.wait()
                known = self._models.get(known.id)
                if known.hosted is not None:
                    return
                if time.monotonic() < self._failed_at.get(known.id, -AGAIN_S) + AGAIN_S:
                    raise known.describe_absence()
                if not self.is_under_way:  # another request may have begun one
                    self._begin_demanded(known)
        finally:
            self._num_waiting -= 1
