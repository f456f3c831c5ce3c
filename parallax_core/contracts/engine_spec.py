"""The engine behind a backend, described without importing it: releases, environment, fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from parallax_core.base.refs import Ref

RequestField = Literal[
    "logprobs",
    "prompt_logprobs",
    "priority",
    "adapter",
    "salt",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "grammar",
]
"""The fields of `Request` and `Sampling` that an engine may not honour; `EngineInfo.honours` names those it does."""

SeedSupport = Literal["exact", "engine", "none"]
"""What a seed gives: the tokens of core's own draw, the same tokens in this engine only, or no repetition at all."""

EngineBuild = Literal["cpu", "cuda"]
"""The kind of machine for which an engine is built."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PipStep:
    """One call of pip while the environment of an engine is made."""

    install: tuple[str, ...] = ()
    """Requirements to install. ``{release}`` in one stands for the releases to choose from, such as ``==0.32.0``."""
    as_required_by: str = ""
    """A distribution that an earlier step installs: what ``install`` names without a version is installed in a version
    that it requires, so that each release gets its own. Empty: in the newest."""
    uninstall: tuple[str, ...] = ()
    """Distributions to remove, such as dependencies that have no build for this machine. Instead of ``install``."""
    options: tuple[str, ...] = ()
    """Further options of pip, such as ``--no-deps``."""
    releases: tuple[str, ...] = ()
    """The only releases of the engine to choose from, the newest last, such as where others than the engine's own
    project publish its builds; empty: all that are supported."""
    note: str = ""
    """A note to users before this step, such as the publisher of the builds that it installs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpec:
    """Describes the engine of a backend, for ``parallax engines``, ``parallax doctor`` and the documentation."""

    module: str
    """The module that is imported to check a new environment, such as ``vllm``."""
    importing: Ref[Callable[[], None]] | None = None
    """A function that imports it in its environment, and raises or exits with an error if it cannot, where that takes
    more than an import."""
    distributions: tuple[str, ...]
    """The distributions that may hold the engine; the version of the one that is installed is the engine's."""
    supported: str
    """The releases that the backend supports, as pip writes them: ``>=0.31,<0.33``."""
    builds: Mapping[EngineBuild, tuple[PipStep, ...]]
    """The steps that install the engine, by the kind of machine. Core installs itself and the backend after them."""
    honours: frozenset[RequestField] = frozenset()
    """The fields that its engines honour at most; see `EngineInfo.honours`."""
    seed: SeedSupport = "none"
    """See `EngineInfo.seed`."""
    max_answers: int = 1
    """See `EngineInfo.max_answers`."""
    max_logprobs: int = 0
    """See `EngineInfo.max_logprobs`."""
