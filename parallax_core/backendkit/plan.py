"""Checks a stage plan against the model and the backend."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from parallax_core.base.errors import Unsupported
from parallax_core.checkpoint.reader import read_config
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.border import Border, list_borders
from parallax_core.contracts.model import HIDDEN, ModelShape
from parallax_core.contracts.stage import LayerRange


def choose_layers(plan: StagePlan, num_layers: int) -> LayerRange:
    """Return the layers of a plan, for a model of ``num_layers`` layers.

    Raises:
        Unsupported: if the model does not have these layers, or the range is empty.
    """
    layers = LayerRange(0, num_layers) if plan.layers is None else plan.layers
    if not 0 <= layers.start < layers.stop <= num_layers:
        message = f"layers {layers.start}-{layers.stop} are not a range of the model's {num_layers} layers"
        raise Unsupported(message, f"ask for layers within 0-{num_layers}")
    return layers


def refuse_leases(plan: StagePlan, backend: str) -> None:
    """Refuse a plan of a stage that serves through leases; for a backend of the name given that has no such stages.

    Raises:
        Unsupported: if the plan is of such a stage.
    """
    if plan.leased:
        message = f"stages of the backend {backend!r} cannot be shared by leases"
        raise Unsupported(message, "choose another backend for this node, or do not share its layers")


def check_device(plan: StagePlan, dtypes: Collection[str], devices: Collection[str]) -> None:
    """Refuse a dtype or device that a backend does not have; dtype ``auto`` and an empty device are always allowed.

    Raises:
        Unsupported: if the plan names another dtype or device.
    """
    if plan.dtype not in {"auto", *dtypes}:
        message = f"this backend does not compute in {plan.dtype}"
        raise Unsupported(message, f"choose one of: auto, {', '.join(sorted(dtypes))}")
    if plan.device not in {"", *devices}:
        message = f"this backend does not run on {plan.device}"
        raise Unsupported(message, f"choose one of: {', '.join(sorted(devices))}")


def check_plain_stage(plan: StagePlan, layers: LayerRange, engine: str) -> None:
    """Refuse layers of a family that are more than an engine's own stages hold, as far as its adapter describes it.

    These hand on one tensor of the model's width, know no tokens but in the first stage, and keep keys and values.

    Raises:
        Unsupported: naming the engine, the family and the reason.
    """
    if plan.shape is None:
        return
    if reason := next(_list_obstacles(plan.shape, layers), None):
        family = ", ".join(map(str, read_config(plan.model).get("architectures") or ())) or "this family"
        message = f"a stage on {engine} cannot hold layers {layers.start}-{layers.stop} of {family}: {reason}"
        raise Unsupported(message, f"serve the model whole on {engine}, without --stages and --layers, or choose torch")


def _list_obstacles(shape: ModelShape, layers: LayerRange) -> Iterator[str]:
    """Return what such a stage cannot do."""
    borders = list_borders(shape)
    for cut in (layers.start, layers.stop):
        if 0 < cut <= len(borders):
            yield from _list_crossing(borders[cut - 1], (shape.hidden_size,))
    for number in range(layers.start, layers.stop):
        if shape.layers[number].state_width:
            yield f"layer {number} has a recurrent state"
        if layers.start and shape.layers[number].tokens:
            yield f"layer {number} needs the tokens, which are in the first stage"


def _list_crossing(border: Border, width: tuple[int, ...]) -> Iterator[str]:
    """Return what crosses a border besides hidden states of that width."""
    place = f"the border before layer {border.layer}"
    if border.obstacle:
        yield f"no stage may begin with layer {border.layer}, as {border.obstacle}"
    for plane in border.planes:
        if plane.name != HIDDEN:
            yield f"{plane.name!r} crosses {place} beside the hidden states"
        elif plane.shape != width:
            yield f"hidden states of {plane.shape} instead of {width} cross {place}"
