"""Checks a stage plan against the model and the backend."""

from __future__ import annotations

from collections.abc import Collection

from parallax_core.base.errors import Unsupported
from parallax_core.contracts.backend import StagePlan
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
