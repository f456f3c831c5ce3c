"""Opens the stages that a worker is assigned, and prepares whole models, with the installed plugins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.base.ids import is_further
from parallax_core.base.machine import Machine
from parallax_core.checkpoint.reader import find_missing, read_config
from parallax_core.checkpoint.weights_version import digest_parts
from parallax_core.config.worker import WorkerSettings
from parallax_core.contracts.backend import BackendSpec, StagePlan
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.replica import PreparedModel
from parallax_core.contracts.source import ModelFolder
from parallax_core.contracts.stage import LayerRange, Stage
from parallax_core.models.backends import choose_backend, find_backends, probe
from parallax_core.models.catalog import Catalog
from parallax_core.models.layer_fetch import LayerFetcher
from parallax_core.models.stage_tensors import check_present, choose_tensors
from parallax_core.models.stages import RoomCheck, open_stage
from parallax_core.node.worker.allowed_models import ANYTHING, AllowedModels
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.wire.membership import Assign


@dataclass(frozen=True, slots=True)
class FixedStage:
    """The only layers that a node runs, which its user has chosen."""

    model: str
    """The model as the user of the node names it."""
    layers: LayerRange

    def __str__(self) -> str:
        return f"{self.layers.start}-{self.layers.stop} of {self.model}"


class StageOpener:
    """Opens the stages assigned to a worker, and prepares whole models, with the installed plugins."""

    def __init__(
        self,
        plugins: PluginHost,
        backends: list[Offer[BackendSpec]],
        fault: ParallaxError | None = None,
        allowed: Sequence[str] = (),
        memory: int | None = None,
    ) -> None:
        """Open stages with one of ``backends``, best first; without any, raise ``fault`` instead.

        Args:
            plugins: the installed plugins.
            backends: what opens the stages.
            fault: why there is no backend.
            allowed: the models that may be loaded, see `AllowedModels`.
            memory: the bytes that a stage may use, and that its pages take their share of; None: all that are free.
        """
        self._plugins = plugins
        catalog = Catalog(plugins)
        self._fetcher = LayerFetcher(plugins, catalog)
        self._allowance = AllowedModels(catalog, allowed)
        self._backends = backends
        self._fault = fault
        self.find_limit: Callable[[], int | None] = lambda: memory
        """Returns the bytes that a stage may use now, or None for all that are free; services may put another here."""
        self.fixed: FixedStage | None = None
        """The only layers that are opened; None: any that a head assigns."""
        self.max_context: int | None = None
        """The most tokens of a request on this node; None: as many as the model takes."""

    @property
    def names(self) -> tuple[str, ...]:
        """The backends it can open stages with."""
        return tuple(offer.spec.name for offer in self._backends)

    @property
    def backends(self) -> Sequence[Offer[BackendSpec]]:
        """The backends it can open stages with, the best first."""
        return self._backends

    def warm_up(self) -> None:
        """Import the best backend, which may block the process for seconds."""
        for offer in self._backends[:1]:
            with contextlib.suppress(ParallaxError):  # raised again when a stage is opened
                offer.load(offer.spec.factory)

    def open_stage(self, assign: Assign, progress: Progress) -> Stage:
        """Find or fetch the layers of the model, and load them; for a lease, those that the node holds.

        Raises:
            ParallaxError: if they cannot be fetched or loaded, or the model is not allowed.
        """
        start, stop = (assign.holds_start, assign.holds_stop) if assign.memory_share else (assign.start, assign.stop)
        layers = LayerRange(start, stop) if stop else None
        draft = StagePlan(model=Path(), layers=layers, dtype=assign.dtype, device=assign.device)
        offer, folder = self._find(assign.model, assign.backend, draft, progress)
        plan = replace(
            draft,
            model=folder.path,
            listed_weights=folder.listed_weights,
            leased=assign.memory_share > 0,
            memory_fraction=self._limit_share(assign.memory_fraction),
            max_batch_tokens=assign.max_batch_tokens,
            max_running=assign.max_running,
            progress=progress,
        )
        return open_stage(self._plugins, offer, plan)

    def prepare_model(self, model: str, backend: str, progress: Progress) -> PreparedModel:
        """Find or fetch a whole model, and make the backend; see `NodeContext.prepare_model`."""
        if self.max_context is not None:
            message = f"this node has max_context={self.max_context}, and what serves whole models knows no such limit"
            raise ParallaxError(
                message, "start the node without --max-context, and limit the engine by its own options"
            )
        offer, folder = self._find(model, backend, StagePlan(model=Path()), progress)
        missing = find_missing(folder.path)
        if missing and (tensors := choose_tensors(self._plugins, read_config(folder.path), None)):
            check_present(folder.path, tensors, missing)
        return PreparedModel(
            name=offer.spec.name,
            backend=offer.load(offer.spec.factory)(),
            folder=folder.path,
            memory_share=self._limit_share(1.0),
            listed_weights=folder.listed_weights,
            options=self._plugins.read_options(offer),
            weights_parts={**digest_parts(folder.path), **folder.listed_weights},
        )

    def _find(
        self, model: str, backend: str, draft: StagePlan, progress: Progress
    ) -> tuple[Offer[BackendSpec], ModelFolder]:
        """Return the backend for a model, and the folder with at least the layers of a plan without its folder."""
        layers = draft.layers
        if self._fault is not None:
            raise self._fault
        if self.fixed is not None and layers != self.fixed.layers:
            asked = f"{layers.start}-{layers.stop}" if layers is not None else "all of them"
            message = f"this node runs layers {self.fixed} only, not {asked}"
            raise ParallaxError(message, "have the server find its nodes: `parallax serve --find`")
        offers = [offer for offer in self._backends if backend in {"", offer.spec.name}]
        if not offers:
            message = f"this node has no backend {backend!r}, only {', '.join(self.names)}"
            raise ParallaxError(message, "install it there, or name another --backend")
        if self.fixed is not None:  # the head compares the content of the weights with its own
            model = self.fixed.model
        else:
            self._allowance.check(model)
        check = RoomCheck(self._plugins, offers, draft, self.find_memory())
        folder = self._fetcher.fetch(model, layers, progress, check)
        return choose_backend(self._plugins, offers, read_config(folder.path)), folder

    def _limit_share(self, fraction: float) -> float:
        """Return the share of the free memory that is ``fraction`` of the memory for this node."""
        if (memory := self.find_limit()) is None or not (free := self._find_free()):
            return fraction
        return fraction * min(1.0, memory / free)

    def find_memory(self) -> int:
        """Return the bytes that a stage may use; 0: unknown, because some backend uses a device's own memory."""
        memory = self.find_limit()
        return self._find_free() if memory is None else memory

    def _find_free(self) -> int:
        devices = [probe(offer).device for offer in self._backends]
        return (Machine().free_memory() or 0) if all(device.startswith("cpu") for device in devices) else 0


def make_opener(settings: WorkerSettings, plugins: PluginHost) -> StageOpener:
    """Return the opener of stages; a worker that a server started reports a missing backend when it gets a stage.

    Raises:
        ParallaxError: if a node started by hand has no backend that can run.
    """
    is_own = settings.supervised and not is_further(settings.node or "")  # a server trusts its own models
    allowed = (ANYTHING,) if is_own else settings.allow_model
    try:
        opener = StageOpener(plugins, find_backends(plugins, settings.backend), None, allowed, settings.memory_bytes)
    except ParallaxError as error:
        if not settings.supervised:
            raise
        return StageOpener(plugins, [], error, allowed, settings.memory_bytes)
    if settings.layers:
        opener.fixed = FixedStage(settings.model, read_layers(settings.layers))
    opener.max_context = settings.max_context
    return opener


def read_layers(text: str) -> LayerRange:
    """Return the layers that ``A-B`` stands for.

    Raises:
        UsageError: if there are none.
    """
    start, stop = map(int, text.split("-"))
    if start >= stop:
        raise UsageError(f"{text} are no layers", "write the first layer and the one after the last, such as 0-15")
    return LayerRange(start, stop)


def name_offered(catalog: Catalog, model: str) -> str:
    """Return the name by which nodes and heads of different machines speak of a model: of a folder, its own name.

    Whether it is the same model is decided by the content of its weights.

    Raises:
        ParallaxError: if no source has models of that form.
    """
    found = catalog.locate(model)
    return Path(found.name).expanduser().resolve().name if catalog.takes_paths(found) else catalog.qualify(model)
