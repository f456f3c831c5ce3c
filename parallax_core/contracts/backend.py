"""Backends: ways to run layers on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from parallax_core.base.refs import Ref
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.stage import LayerRange, Stage

DType = Literal["auto", "float32", "float16", "bfloat16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """What a backend is asked to load. Filled by core from the command line and the configuration."""

    model: Path
    """A model folder in the standard layout; see `ModelFolder`. Its weights may be here for these layers only, and in
    holes of their files where others would be: `read_tensors` reads none, and `find_missing` names what is not here."""
    layers: LayerRange | None = None
    """Which layers; None: the whole model."""
    dtype: DType = "auto"
    """What to compute in; ``auto`` leaves it to the backend, which knows its device."""
    device: str = ""
    """Which of its devices, in the backend's words, such as ``cuda:1``; empty: the backend's choice."""
    memory_fraction: float = 0.5
    """The share of the memory that is free after loading the weights that KV pages may take."""
    max_batch_tokens: int = 0
    """The most tokens of a step, in `StageInfo.max_batch_tokens`; 0: the backend's choice."""
    max_running: int = 0
    """How many sequences may run at once, for backends that set memory aside by it; 0: nobody has said."""
    progress: Progress = silent
    listed_weights: Mapping[str, str] = field(default_factory=dict)
    """What the source of the model lists of its weights; see `ModelFolder`. For `identify_weights`."""
    blocks: object = None
    """What builds the layers, where the model's adapter brings that for this backend: what `ModelSpec.blocks` names,
    loaded. None: the backend's own."""


class Backend(Protocol):
    """Opens stages."""

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load the layers and return them ready to run.

        Raises:
            Unsupported: if this backend cannot run the model, its architecture or its dtype.
            ParallaxError: with a hint, if the files are damaged or there is too little memory.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Availability:
    """Whether this machine can run a backend."""

    ok: bool
    device: str = ""
    """What it would run on, in words: ``Metal``, ``cpu``."""
    reason: str = ""
    """If not, why, and what would help."""
    advice: str = ""
    """If so, what the user could do for more speed, in one line; empty: nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendSpec:
    """Offers a backend."""

    name: str
    """What users write in ``--backend``."""
    summary: str
    """One line for ``parallax plugins``."""
    probe: Ref[Callable[[], Availability]]
    """Can this machine run it? Answers within 200 ms and imports no framework."""
    factory: Ref[Callable[[], Backend]]
    rank: int = 0
    """Its own account of preference; the highest available rank is the default."""
    remedy: str = ""
    """What to do when a Ref cannot be imported, such as what to install."""
