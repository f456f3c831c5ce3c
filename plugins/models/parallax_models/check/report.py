"""Says whether a model is supported: its family, its parameters, and the backends that run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parallax_core.api import (
    BackendSpec,
    LayerRange,
    ModelShape,
    ParallaxError,
    StagePlan,
    count_layers,
    list_borders,
    read_object,
)
from parallax_core.api.deployment import Offer, PluginHost, check_model, count_active, count_weights, find_family, probe
from parallax_models.check.weight_check import OTHER, PREDICTION, PartCount, check_weights

NO_FAMILY = "no installed plugin describes this architecture"
NO_PLAN = "layers cannot be placed on machines by size, and every stage fetches the whole model"
ADD = "docs/how-to/write-a-model-adapter.md says how to add a family"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendReport:
    """Whether a backend runs a model, here and now."""

    name: str
    whole: bool | None = None
    """Whether it runs the whole model; None: it cannot be told here."""
    stages: bool | None = None
    """Whether it runs a part of the layers; None: it cannot be told here."""
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AsideReport:
    """Tensors of a checkpoint that no layer uses, and that are not loaded."""

    kind: str
    tensors: int
    parameters: int
    """At least; 0: the headers are not here."""
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReport:
    """The answer to the question whether a model is supported."""

    model: str
    architectures: list[str]
    family: str = ""
    """Empty: no installed plugin knows it."""
    plugin: str = ""
    parameters: int = 0
    active_parameters: int = 0
    layers: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    """The number of layers of each kind."""
    joined: dict[int, str] = field(default_factory=dict)
    """By the layers with which no stage may begin: why."""
    aside: list[AsideReport] = field(default_factory=list)
    problem: str = ""
    """Why the model cannot be planned; empty: it can."""
    hint: str = ""
    backends: list[BackendReport] = field(default_factory=list)

    @property
    def is_supported(self) -> bool:
        """Whether a backend of this machine runs the model, and its description is right."""
        return any(each.whole for each in self.backends) and (not self.problem or not self.family)

    def to_json(self) -> dict[str, Any]:
        """Return the report for ``--json``."""
        return {"supported": self.is_supported, **asdict(self)}


def check(host: PluginHost, model: str, folder: Path) -> ModelReport:
    """Return the report of the model in ``folder``, of which no weights are read.

    Raises:
        ParallaxError: if config.json is missing or damaged, or several plugins claim the architecture.
    """
    config = read_object(folder / "config.json")
    named = config.get("architectures")
    names = [str(name) for name in named] if isinstance(named, list) else []
    known: dict[str, Any] = {"model": model, "architectures": names, **describe_family(host, config, folder)}
    num_layers, joined = known.get("layers") or count_layers(config) or 1, known.get("joined", {})
    cuts = sorted({*range(1, num_layers)} - {*joined}, key=lambda cut: abs(cut - num_layers // 2))
    ranges = (LayerRange(0, cuts[0]), LayerRange(cuts[0], num_layers)) if cuts else ()
    return ModelReport(**known, backends=[ask_backend(host, offer, ranges, folder) for offer in list_backends(host)])


def describe_family(host: PluginHost, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the fields of `ModelReport` that the adapter of the family tells."""
    family = find_family(host, config)
    if family is None:
        return {"problem": f"{NO_FAMILY}: {NO_PLAN}", "hint": ADD, "layers": count_layers(config) or 0}
    plugins = [offer.plugin.distribution for offer in host.models().offers if offer.spec.name == family.name]
    known: dict[str, Any] = {"family": family.name, "plugin": ", ".join(plugins)}
    try:
        shape = family.adapter.read_shape(config)
        known |= describe_shape(shape)
        counts = check_weights(family, shape, folder)
    except ParallaxError as error:
        return known | {"problem": error.message, "hint": error.hint}
    aside = [describe_aside(kind, counts[kind]) for kind in (PREDICTION, OTHER) if kind in counts]
    return known | {"aside": aside}


def describe_shape(shape: ModelShape) -> dict[str, Any]:
    """Return the fields of `ModelReport` that the shape has."""
    return {
        "parameters": count_weights(shape),
        "active_parameters": count_active(shape),
        "layers": len(shape.layers),
        "kinds": dict(Counter(layer.kind for layer in shape.layers)),
        "joined": {border.layer: border.obstacle for border in list_borders(shape) if border.obstacle},
    }


def describe_aside(kind: str, count: PartCount) -> AsideReport:
    """Return the report of tensors that no layer uses."""
    return AsideReport(kind=kind, tensors=count.tensors, parameters=count.least, bytes=count.num_bytes)


def list_backends(host: PluginHost) -> list[Offer[BackendSpec]]:
    """Return the installed backends, best rank first."""
    return sorted(host.backends().offers, key=lambda offer: -offer.spec.rank)


def ask_backend(
    host: PluginHost, offer: Offer[BackendSpec], ranges: Sequence[LayerRange], folder: Path
) -> BackendReport:
    """Return whether a backend runs the model, and each of some ranges of its layers; none: it cannot be cut."""
    name, here = offer.spec.name, probe(offer)
    away = "" if here.ok else f"not on this machine: {here.reason}"
    if away and offer.spec.check is None:
        return BackendReport(name=name, reason=away)
    is_whole: bool | None = False
    try:
        if not check_model(host, offer, StagePlan(model=folder)):
            return BackendReport(name=name, reason=away or "this backend tells only when it loads the model")
        is_whole = None if away else True
        for layers in ranges if "stage" in offer.spec.opens else ():
            check_model(host, offer, StagePlan(model=folder, layers=layers))
    except ParallaxError as error:
        reason = "; ".join(filter(None, (away, error.message)))
        return BackendReport(name=name, whole=is_whole, stages=False, reason=reason, hint=error.hint)
    if away:
        return BackendReport(name=name, reason=f"{away}; it has this family, and splits it, by what is recorded of it")
    return BackendReport(name=name, whole=True, stages=bool(ranges) and "stage" in offer.spec.opens)
