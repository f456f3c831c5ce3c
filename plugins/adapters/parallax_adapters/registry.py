"""The LoRA adapters of a server: loaded and unloaded, within limits, and tried before they are served."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import Counter
from collections.abc import Mapping

from parallax_adapters.copies import LAYERS
from parallax_adapters.holds import FileHold
from parallax_adapters.limits import AdapterLimits, Wish
from parallax_adapters.places import fetched
from parallax_adapters.settings import AdapterSettings
from parallax_adapters.sharing import AdapterSharing
from parallax_adapters.store import AdapterStore
from parallax_core.api import InvalidRequest, LayerRange, ParallaxError, Request, RequestId, Sampling, Unavailable
from parallax_core.api.dialect import ModelEntry, ServedAdapter, ServedModels

NAME = re.compile(r"[\w][\w.:/@+-]{0,199}")
"""Matches the name of an adapter."""
TRIAL_S = 60.0
"""Seconds that the trial of an adapter may take."""
POLL_S = 0.05
"""Seconds between looks at the running requests of an adapter that is unloaded."""


class AlreadyLoaded(InvalidRequest):
    """An adapter has the name of another one, which it is not to replace; in vLLM's words."""

    def __init__(self, name: str) -> None:
        message = f"The lora adapter '{name}' has already been loaded"
        hint = "if you want to load the adapter in place, set 'load_inplace' to true"
        super().__init__(message, "lora_name", hint)


class AdapterRegistry:
    """Loads adapters for the models of a server, and keeps those within the limits. Belongs to one event loop.

    Args:
        models: the models, whose table of adapters it fills.
        settings: the limits.
        store: where stages of this machine find adapters.
        sharing: brings them to stages of others.
    """

    def __init__(
        self, models: ServedModels, settings: AdapterSettings, store: AdapterStore, sharing: AdapterSharing
    ) -> None:
        self.settings = settings
        self._models, self._store, self._sharing = models, store, sharing
        self._limits = AdapterLimits(settings)
        self._changing = asyncio.Lock()
        self._holds: dict[str, FileHold] = {}
        """By key, what keeps the files of adapters from other servers with the same folder."""
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def loaded(self) -> Mapping[str, ServedAdapter]:
        """The adapters that are served, by name."""
        return self._models.adapters

    def add_untried(self, name: str, place: str) -> ServedAdapter:
        """Serve an adapter that no model has tried yet, before the server starts; it is never the one to make room.

        Raises:
            ParallaxError: if it cannot be used.
        """
        if len(self.loaded) >= self.settings.max_adapters:
            message = f"{name!r} is more than the {self.settings.max_adapters} adapters that may be loaded"
            raise ParallaxError(message, "allow more with PARALLAX_ADAPTERS__MAX_ADAPTERS")
        if name in self.loaded:
            raise ParallaxError(f"two adapters are named {name!r}", "give each --adapter a name of its own")
        base = self._find_base("")
        self._check_name(name)
        self._limits.note(Wish(name=name, place=place, pins=True))
        key = self._add(place)
        self._offer(key)
        self._models.adapters[name] = made = ServedAdapter(name=name, model_id=base.id, key=key, root=place)
        return made

    async def try_out(self, adapter: ServedAdapter) -> None:
        """Bring an adapter to all machines, and answer a request of one token, for which its model's stages load it.

        Raises:
            InvalidRequest: if the model cannot use it; the message says why.
            Unavailable: if the model does not answer now.
        """
        base = self._models.get(adapter.model_id)
        if base.hosted is None:
            raise base.describe_absence()
        self._check_layers(adapter)
        await asyncio.gather(self._sharing.spread(adapter.key), asyncio.to_thread(LAYERS.prepare, adapter.key))
        request = Request(
            id=RequestId(f"adapter-{uuid.uuid4().hex}"),
            prompt=(0,),
            max_tokens=1,
            sampling=Sampling(temperature=0),
            adapter=adapter.key,
            salt="parallax-adapters",
            timeout_s=TRIAL_S,
        )
        try:
            stream = base.hosted.service.engine.submit(request)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, "lora_path", error.hint) from error
        finish = [delta.finish async for delta in stream if delta.finish is not None][-1]
        if finish.reason in {"error", "timeout", "aborted"}:
            raise InvalidRequest(f"the adapter cannot be used: {finish.message}", "lora_path")

    async def load(self, wish: Wish) -> None:
        """Load an adapter, try it, and serve it.

        Raises:
            InvalidRequest: if it cannot be used; ``param`` is the field of vLLM's request.
            Unavailable: if the model does not answer now, or other adapters are all in use.
        """
        async with self._changing:
            name = wish.name
            model, old = self._find_base(wish.base), self.loaded.get(name)
            self._check_name(name)
            if old is not None and not wish.replaces:
                raise AlreadyLoaded(name)
            self._limits.choose(wish, self.loaded.values(), self.count_running())  # refused before anything is read
            try:
                key = await asyncio.to_thread(self._add, wish.place)
            except ParallaxError as error:
                raise InvalidRequest(error.message, "lora_path", error.hint) from error
            made = ServedAdapter(name=name, model_id=model.id, key=key, root=wish.place, last_used=time.monotonic())
            try:
                self._offer(key)
                await self.try_out(made)
                oldest = self._limits.choose(wish, self.loaded.values(), self.count_running())
            except BaseException:
                self._release(key)
                raise
            if oldest:  # only an adapter that can be used takes the place of another
                self._remove(oldest)
            self._models.adapters[name] = made
            self._limits.note(wish)
            if old is not None:
                self._release(old.key)

    async def unload(self, name: str) -> None:
        """Stop serving an adapter; its running requests go on.

        Raises:
            KeyError: if it is not loaded.
        """
        async with self._changing:
            self._remove(name)

    def count_running(self) -> Counter[str]:
        """Return the number of running requests by the key of their adapter."""
        return sum((service.running.count_adapters() for service in self._models.services), Counter[str]())

    async def close(self) -> None:
        """End what is left; the server has stopped."""
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        for key in list(self._holds):
            self._holds.pop(key).release()

    def _add(self, place: str) -> str:
        with fetched(place, self.settings.hub, self.settings.max_rank) as folder:
            while True:
                key = self._store.add(folder, self.settings.max_rank)
                hold = self._store.hold(key)
                if self._store.has(key):
                    break
                hold.release()  # another server has just removed it
        if self._holds.setdefault(key, hold) is not hold:
            hold.release()
        return key

    def _check_layers(self, adapter: ServedAdapter) -> None:
        """Refuse an adapter with layers that its model does not have, which no stage sees."""
        [model] = [each for each in self._models.describe().models if each.id == adapter.model_id]
        stages = [stage for replica in model.replicas for stage in replica.stages]
        count = max([stage.layers.stop for stage in stages if stage.layers is not None], default=0)
        beyond = [number for number in self._store.list_layers(adapter.key) if number >= count]
        if count and beyond:
            part = self._store.open(adapter.key, LayerRange(beyond[0], beyond[0] + 1))
            message = f"the adapter changes {next(iter(part.modules))}, and the model has the layers 0 to {count - 1}"
            raise InvalidRequest(message, "lora_path", "name the adapter's own model")

    def _offer(self, key: str) -> None:
        self._sharing.offer(key, self._store.read_list(key))

    def _find_base(self, base: str) -> ModelEntry:
        if base:
            if (found := self._models.known.get(base)) is None and (found := self._models.look_up(base)) is None:
                raise InvalidRequest(f"the model {base!r} does not exist", "base_model_name")
            return found
        loaded = self._models.loaded
        if not loaded:
            raise Unavailable("no model is loaded, for which an adapter could be", "load the model first")
        return loaded[0]

    def _check_name(self, name: str) -> None:
        if not NAME.fullmatch(name):
            message = f"{name[:80]!r} is no name for an adapter"
            raise InvalidRequest(message, "lora_name", "use letters, digits and . _ - : / @ +, at most 200")
        if name in self._models.known or name in self._models.aliases:
            raise InvalidRequest(f"{name!r} is the name of a model", "lora_name", "choose another name")

    def _remove(self, name: str) -> None:
        adapter = self._models.adapters.pop(name)
        self._limits.forget(name)
        self._release(adapter.key)

    def _release(self, key: str) -> None:
        """Remove an adapter from the store, once nothing uses it."""
        task = asyncio.create_task(self._wait_and_remove(key))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _wait_and_remove(self, key: str) -> None:
        while self.count_running()[key]:  # noqa: ASYNC110 -- requests end without telling
            await asyncio.sleep(POLL_S)
        async with self._changing:
            if not any(each.key == key for each in self.loaded.values()):
                self._sharing.withdraw(key)
                if (hold := self._holds.pop(key, None)) is not None:
                    hold.release()
                await asyncio.to_thread(self._store.remove, key)
