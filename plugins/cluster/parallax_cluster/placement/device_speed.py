"""Finds how fast a device computes the layers of one model, by what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from parallax_core.api import DeviceProfile, LayerDemand

EXPERT_LAYERS = 2.0
"""The fixed time of a layer with experts, in layers without: choosing and gathering them starts further kernels.
docs/explanation/placement.md says from which measurements."""


class Speed(NamedTuple):
    """The inverse speed of a node."""

    flop_s: float
    byte_s: float
    step_s: float
    layer_s: float
    """Of a layer without experts; see `weigh_starts`."""
    memory: float


def invert_speed(device: DeviceProfile, layers: Sequence[LayerDemand]) -> Speed:
    """Return the inverse speed of a device with the layers of a model."""
    flops, bandwidth = find_form(device, measure_number(layers))
    flops, bandwidth = flops * device.flops_efficiency, bandwidth * device.bandwidth_efficiency
    return Speed(1 / flops, 1 / bandwidth, device.step_s, _find_layer_s(device, layers), float(device.memory))


def measure_number(layers: Sequence[LayerDemand]) -> float:
    """Return the mean bytes of the weights that a token meets."""
    flops = sum(layer.flops + layer.draw_flops for layer in layers)
    met = sum(layer.experts * layer.num_active_experts / max(layer.num_experts, 1) for layer in layers)
    return 2 * (sum(layer.read for layer in layers) + met) / max(flops, 1)


def find_form(device: DeviceProfile, number_bytes: float) -> tuple[float, float]:
    """Return the FLOPs and the bytes per second with weights of a mean size in bytes.

    Between two forms that were measured, the times of a number lie on a line, as those of a model do that has some
    weights in either form.
    """
    forms = sorted(device.forms)
    if not forms:
        return device.flops, device.bandwidth
    if not forms[0][0] < number_bytes < forms[-1][0]:
        return forms[0 if number_bytes <= forms[0][0] else -1][1:]
    low, high = next(pair for pair in pairwise(forms) if pair[1][0] >= number_bytes)
    share = (number_bytes - low[0]) / (high[0] - low[0])
    read_s = (1 - share) * low[0] / low[2] + share * high[0] / high[2]
    return 1 / ((1 - share) / low[1] + share / high[1]), number_bytes / read_s


def weigh_starts(layer: LayerDemand) -> float:
    """Return the fixed time of a layer, in layers without experts."""
    return EXPERT_LAYERS if layer.num_experts else 1.0


def find_unmet(layer: LayerDemand) -> float:
    """Return the share of the experts of a layer that a token does not meet."""
    return 1.0 - layer.num_active_experts / layer.num_experts


def _find_layer_s(device: DeviceProfile, layers: Sequence[LayerDemand]) -> float:
    """Return the fixed time of a layer; if that of layers with experts was measured, such that all sum to the same."""
    if not device.expert_layer_s:
        return device.layer_s
    measured_s = sum(device.expert_layer_s if layer.num_experts else device.layer_s for layer in layers)
    return measured_s / sum(map(weigh_starts, layers))
