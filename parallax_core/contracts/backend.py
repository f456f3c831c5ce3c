"""Backends, which run layers on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from parallax_core.base.refs import Ref
from parallax_core.contracts.device import DeviceBenchmark, DevicePlan, DType
from parallax_core.contracts.engine_spec import EngineSpec
from parallax_core.contracts.model import ModelShape, Part
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.stage import LayerRange, Stage


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """What a backend loads. Filled by core from the command line and the configuration."""

    model: Path
    """A model folder in the standard layout; see `ModelFolder`. It may hold the weights of these layers only; the files
    then have holes in place of others: `read_tensors` skips those, and `find_missing` names the missing tensors."""
    layers: LayerRange | None = None
    """The layers to load; None: the whole model."""
    dtype: DType = "auto"
    """The dtype to compute in; ``auto`` leaves it to the backend, which knows its device."""
    device: str = ""
    """The device, in the backend's notation, such as ``cuda:1``; empty: the backend's choice."""
    memory_fraction: float = 0.5
    """The share, from 0 to 1, that KV pages may take of the memory that is free after loading the weights."""
    max_batch_tokens: int = 0
    """The most tokens in a step, reported as `StageInfo.max_batch_tokens`; 0: the backend's choice."""
    max_running: int = 0
    """The most sequences that run at the same time, for backends that reserve memory for them; 0: not configured."""
    progress: Progress = silent
    listed_weights: Mapping[str, str] = field(default_factory=dict)
    """The digests of the weight files as the model's source lists them; see `ModelFolder`. For `identify_weights`."""
    blocks: object = None
    """The layer builder of the model's adapter for this backend; see `ModelSpec.blocks`. None: the backend's own."""
    shape: ModelShape | None = None
    """The model as its adapter describes it, with its layers and borders; see `list_borders`. None: no adapter does."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The values of the fields of `BackendSpec.options`, as configured on the node that opens the stage. Empty: the
    defaults. ``MyOptions(**plan.options)`` returns them as an object."""
    leased: bool = False
    """Whether the stage serves through leases: it then takes no pages and has the capability ``leases``; see `Leasing`.
    Core refuses a stage without it, so a backend may ignore the field, or refuse it early: see `refuse_leases`."""


Opens = str
"""The kind of replicas that a backend serves: ``stage``, stages of core's pipeline (`Backend`); ``engine``, engines for
whole models (`EngineBackend`), by ``parallax-engines``; or one of another plugin, see `ReplicaSpec`."""


class Backend(Protocol):
    """Opens stages."""

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load the layers and return a stage that is ready to run.

        Raises:
            Unsupported: if this backend cannot run the model's architecture or dtype.
            ParallaxError: with a hint, if the files are damaged or there is too little memory.
        """


@runtime_checkable
class ModelChecker(Protocol):
    """An optional protocol of a `Backend` that can tell without weights whether it runs a model."""

    def check_model(self, plan: StagePlan) -> None:
        """Check whether `open_stage` takes the model and the layers, on any machine with enough memory.

        Args:
            plan: as for `open_stage`. Its folder has config.json, and may have the index and the headers of the
                weights; the numbers are not there.

        Raises:
            Unsupported: if not; the same error as from `open_stage`.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedSize:
    """The memory that a model takes as a backend loads it, in bytes; tables that stay in their files count for none."""

    layers: tuple[int, ...]
    """Of the weights of each layer."""
    experts: tuple[int, ...] = ()
    """The part of them in experts, of each layer; empty: its share of the numbers."""
    before: int
    """Of the embeddings."""
    after: int
    """Of the final norm and the head, unless it is the embedding."""
    is_tied: bool = False
    """Whether the head is the embedding, which then the last layers need, too."""
    value_bytes: int = 2
    """Of a number of a sequence's keys, values and states, and of the hidden states."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Of all weights in other forms that the backend can load: by what one writes or chooses for it, in words."""
    adapters: tuple[int, ...] = ()
    """Of the memory that is kept for LoRA adapters beside each layer, by the settings; empty: none is."""

    def weigh(self, layers: LayerRange | None = None) -> int:
        """Return the bytes of a stage of some layers, with those kept for adapters; None: of the whole model."""
        start, stop = (layers.start, layers.stop) if layers else (0, len(self.layers))
        is_last = stop == len(self.layers)
        before = self.before if start == 0 or (self.is_tied and is_last) else 0
        return before + sum(self.layers[start:stop]) + sum(self.adapters[start:stop]) + (self.after if is_last else 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Availability:
    """Whether this machine can run a backend."""

    ok: bool
    device: str = ""
    """The device it would run on, such as ``Metal`` or ``cpu``."""
    reason: str = ""
    """If it cannot: the reason, and the remedy."""
    advice: str = ""
    """If it can: how to make it faster, in one line; empty: no advice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendPython:
    """The Python that runs the workers of a backend, in an environment of its own."""

    path: str
    """Its absolute path."""
    fault: str = ""
    """Why it cannot run them, in a sentence; empty: nothing is known against it. Core checks its messages itself."""
    remedy: str = ""
    """How to correct that, such as a command; empty without a fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendSpec:
    """Offers a backend."""

    name: str
    """The name in ``--backend``."""
    summary: str
    """One line for ``parallax plugins``."""
    probe: Ref[Callable[[], Availability]]
    """Tells whether this machine can run it. Returns within 200 ms and imports no framework."""
    factory: Ref[Callable[[], Backend]]
    rank: int = 0
    """Preference; the available backend of the highest rank is the default."""
    remedy: str = ""
    """What to do if a Ref cannot be imported, such as the package to install."""
    options: Ref[type[Any]] | None = None
    """The dataclass of the section of the configuration that holds the backend's options; the plugin declares it with
    a `SettingsSpec`, too. Core reads it and fills `StagePlan.options`. None: the backend has no options."""
    opens: tuple[Opens, ...] = ("stage",)
    """The kinds of replicas it opens. The first serves models that are not split; stages serve split models, and layers
    given by a user."""
    engine: Ref[EngineSpec] | None = None
    """Describes the engine that the backend runs, if it is installed apart from the backend. Loading it imports no
    engine. None: the backend has all it needs."""
    check: Ref[Callable[[StagePlan], bool]] | None = None
    """Tells by config.json whether the engine runs the layers of a plan, where it need not be installed; False: it
    cannot tell. Raises `Unsupported`, naming engine, family and reason. None: a `ModelChecker` tells, where it runs."""
    size: Ref[Callable[[StagePlan, Callable[[str], Part | None]], LoadedSize]] | None = None
    """Tells what a model takes as a plan loads it, by config.json, and by the headers of its files if all are here.
    Called with a plan of the whole model, and what tells the part of a tensor (None: none). None: loaded as stored."""
    benchmark: Ref[Callable[[DevicePlan], DeviceBenchmark]] | None = None
    """Makes what measures a device. None: it cannot be measured with this backend; typical figures are used."""
    leases: bool = False
    """Whether several pipelines can use a node with this backend: it honours `StagePlan.leased`."""
