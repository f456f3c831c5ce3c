"""The files of one model in several forms, and the nodes and layers that each form is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parallax_core.api import PlacedStage, holder_of

FORM = "form of the weights"
"""The key of a label of the form that a node loads, for planners; no label of a user has spaces."""
UNMIXED_HINT = "--mix-weights lets machines with different ones serve together"
MOST_NODES = 2**16
"""The most nodes that are remembered."""
Weights = tuple[tuple[int, int, str], ...]
"""By which files layers are computed: the first layer, the one after the last, and the model, in order."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The files of a model in one form."""

    model: str
    """The model that has them, as nodes find it."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Known digests by part; see `StageInfo.weights_parts`."""


def _read_known(variant: Variant) -> Mapping[str, str]:
    return variant.weights


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVariants:
    """The variants of one model. A node loads that of its best backend, or else the model that was named."""

    model: str
    """The model that was named."""
    by_backend: Mapping[str, Variant]
    are_mixed: bool = False
    """Whether a pipeline may have several."""
    goes_on: bool = False
    """Whether answers go on by other weights than they began with."""
    read: Callable[[Variant], Mapping[str, str]] = _read_known
    """Returns the digests of the files of a variant; it may read them, so call it on a thread."""
    found: dict[str, str] = field(default_factory=dict)
    """By node: the model whose files it loads."""

    def note(self, node: str, backends: Sequence[str]) -> str:
        """Note a node with its backends, the best first, and return the model whose files it loads."""
        variant = self.by_backend.get(backends[0]) if backends else None
        if len(self.found) < MOST_NODES:
            self.found[node] = variant.model if variant else self.model
        return self.find(node)

    def find(self, node: str) -> str:
        """Return the model whose files a node loads, or did before it was lost."""
        return self.found.get(node, self.model)

    def show(self, node: str) -> str:
        """Return the same for clients: of a folder, its name."""
        return show_model(self.find(node))

    def trace(self, stages: Iterable[PlacedStage]) -> Weights:
        """Return by which files the stages of a pipeline compute its layers."""
        found: list[tuple[int, int, str]] = []
        for stage in stages:
            start, stop, model = stage.layers.start, stage.layers.stop, self.find(holder_of(stage.node))
            if found and found[-1][2] == model:
                start = found.pop()[0]
            found.append((start, stop, model))
        return tuple(found)

    def __str__(self) -> str:
        pairs = (f"{show_model(each.model)} on {backend}" for backend, each in self.by_backend.items())
        return f"{', '.join(pairs)}; pipelines {'may mix them' if self.are_mixed else 'do not mix them'}"


def describe_weights(weights: Weights) -> str:
    """Return weights in words, such as ``layers 0-15 of org/name, 15-30 of org/name-4bit``."""
    return "layers " + ", ".join(f"{start}-{stop} of {show_model(model)}" for start, stop, model in weights)


def show_model(model: str) -> str:
    """Return the name of a model for clients, who are not told folders."""
    return Path(model).name if model.startswith(("/", "~", ".")) else model
