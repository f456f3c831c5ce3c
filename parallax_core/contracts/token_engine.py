"""Engines that schedule themselves: a backend opens one for a whole model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from parallax_core.contracts.device import DType
from parallax_core.contracts.engine import Engine
from parallax_core.contracts.engine_spec import RequestField, SeedSupport
from parallax_core.contracts.progress import Progress, silent


@dataclass(frozen=True, kw_only=True, slots=True)
class EnginePlan:
    """What a backend serves as a whole. Filled by core from the command line and the configuration."""

    model: Path
    """A complete model folder in the standard layout; see `ModelFolder`."""
    dtype: DType = "auto"
    """The dtype to compute in; ``auto`` leaves it to the engine."""
    device: str = ""
    """The device, in the backend's notation; empty: the backend's choice."""
    memory_fraction: float = 0.5
    """The share, from 0 to 1, that KV pages may take of the memory that is free after loading the weights."""
    max_batch_tokens: int = 0
    """The most tokens in a step; 0: the engine's choice."""
    max_running: int = 0
    """The most answers computed at the same time; 0: the engine's choice."""
    progress: Progress = silent
    """Hears of the loading, from any thread."""
    listed_weights: Mapping[str, str] = field(default_factory=dict)
    """The digests of the weight files as the model's source lists them; see `ModelFolder`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The values of the fields of `BackendSpec.options`; see `StagePlan.options`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """The properties of a started engine, and which fields of a request it honours. Filled by the backend."""

    num_layers: int
    vocab_size: int
    """Token ids lie in ``range(vocab_size)``."""
    context_length: int
    """The longest sequence that it can serve, in tokens: a prompt and its answer."""
    max_running: int
    """The most answers it computes at the same time; further requests wait in the engine."""
    max_batch_tokens: int
    """The most tokens in one of its steps."""
    seed: SeedSupport
    honours: frozenset[RequestField] = frozenset()
    """Core refuses a request that sets any other field of `RequestField`; the error names the field."""
    max_answers: int = 1
    """The largest `Request.n`."""
    max_logprobs: int = 0
    """The largest number of best tokens in `Request.logprobs` and `Request.prompt_logprobs`; at most 1024."""
    device: str = ""
    """A human-readable description."""
    dtype: str = ""
    """The dtype of the activations."""
    weight_bytes: int = 0
    """0: unknown."""


class TokenEngine(Engine, Protocol):
    """An `Engine` of a backend: it takes and gives tokens, and core makes the text.

    `Delta.text` stays empty. Core resolves `Request.max_tokens` to a number, and itself honours ``stop``,
    ``timeout_s``, ``waited_s`` and ``default_max_tokens``, which the engine ignores; the engine honours ``max_tokens``,
    ``stop_ids`` and `Sampling.temperature`, and no end-of-sequence token besides ``stop_ids``.

    The kind of replicas ``engine``, of ``parallax-engines``, runs it in a worker process, on an event loop that belongs
    to the engine alone: `EngineBackend.open_engine` and all methods are called there, and may block while the engine
    loads. If the engine can no longer serve, `health` returns ``failed`` with the reason; its process is then ended,
    with all child processes, and another one started. An engine that is also `Measured` has its statistics in the
    metrics.
    """

    @property
    def info(self) -> EngineInfo:
        """The properties of the engine; constant once it has started."""


@runtime_checkable
class EngineBackend(Protocol):
    """An optional protocol of a `Backend`: it opens engines that serve whole models; see `BackendSpec.opens`."""

    def open_engine(self, plan: EnginePlan) -> TokenEngine:
        """Return an engine for the model; `Engine.start` loads it.

        Raises:
            Unsupported: if this backend cannot serve the model's architecture or dtype.
            ParallaxError: with a hint, if the files are damaged or there is too little memory.
        """
