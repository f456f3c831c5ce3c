"""What a plan asks for, held against what there is."""

from __future__ import annotations

from collections.abc import Collection

from parallax_core.base.errors import Unsupported
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.stage import LayerRange


def choose_layers(plan: StagePlan, num_layers: int) -> LayerRange:
    """Return the layers a plan asks for, of a model of ``num_layers``.

    Raises:
        Unsupported: if there are no such layers, or it asks for none.
    """
    layers = LayerRange(0, num_layers) if plan.layers is None else plan.layers
    if not 0 <= layers.start < layers.stop <= num_layers:
        message = f"the model has {num_layers} layers, and none in {layers.start}-{layers.stop}"
        raise Unsupported(message, f"ask for layers within 0-{num_layers}")
    return layers


def check_device(plan: StagePlan, dtypes: Collection[str], devices: Collection[str]) -> None:
    """Refuse a dtype or a device that a backend does not have; ``auto`` and no device leave it to the backend.

    Raises:
        Unsupported: if it asks for another one.
    """
    if plan.dtype not in {"auto", *dtypes}:
        message = f"this backend does not compute in {plan.dtype}"
        raise Unsupported(message, f"choose one of: auto, {', '.join(sorted(dtypes))}")
    if plan.device not in {"", *devices}:
        message = f"this backend does not run on {plan.device}"
        raise Unsupported(message, f"choose one of: {', '.join(sorted(devices))}")
