"""Checks that the stages of a pipeline fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from parallax_core.base.errors import ParallaxError
from parallax_core.contracts.stage import StageInfo
from parallax_core.contracts.tensor import FLOATS, TensorSpec


def check_stages(infos: Sequence[StageInfo]) -> None:
    """Check that the stages, in this order, hold each layer once and that each takes what the one before it gives.

    The dtype of the hidden states may differ from the one the next stage computes in: that stage converts them.

    Raises:
        ParallaxError: if not; it names the stages that do not fit.
    """
    if not infos:
        message = "a pipeline needs at least one stage"
        raise ParallaxError(message)
    _check_ends(infos)
    for index, (first, second) in enumerate(pairwise(infos)):
        names = f"stage {index} ({first.device}) and stage {index + 1} ({second.device})"
        _check_pair(names, first, second)


def _check_ends(infos: Sequence[StageInfo]) -> None:
    first, last = infos[0].layers, infos[-1].layers
    if first.start != 0:
        message = f"stage 0 begins with layer {first.start}, not with layer 0"
        raise ParallaxError(message, "give the first stage the first layers")
    if last.stop != infos[-1].num_layers:
        message = f"stage {len(infos) - 1} ends before layer {last.stop}, and the model has {infos[-1].num_layers}"
        raise ParallaxError(message, "give the last stage the last layers")


def _check_pair(names: str, first: StageInfo, second: StageInfo) -> None:
    if first.layers.stop != second.layers.start:
        message = f"{names} do not follow each other: one ends before layer {first.layers.stop}, "
        raise ParallaxError(f"{message}and the other begins with {second.layers.start}", "give every layer one stage")
    for what, one, other in (
        ("layers", first.num_layers, second.num_layers),
        ("tokens in the vocabulary", first.vocab_size, second.vocab_size),
    ):
        if one != other:
            message = f"{names} are of different models: {one} and {other} {what}"
            raise ParallaxError(message, "give all stages the same model")
    if not _fits(first.gives, second.takes):
        gives, takes = show_specs(first.gives), show_specs(second.takes)
        message = f"{names} do not fit: one gives {gives}, and the other takes {takes}"
        raise ParallaxError(message, "give all stages the same model")


def _fits(gives: Sequence[TensorSpec], takes: Sequence[TensorSpec]) -> bool:
    """Return whether the next stage can take the hidden states, as they are or converted."""
    if tuple(gives) == tuple(takes):
        return True
    widths = [[spec.width for spec in specs] for specs in (gives, takes)]
    return widths[0] == widths[1] and {spec.dtype for spec in (*gives, *takes)} <= FLOATS


def show_specs(specs: Sequence[TensorSpec]) -> str:
    """Return a description of hidden states, such as ``float32 of width 576``."""
    return " + ".join(f"{spec.dtype} of width {spec.width}" for spec in specs) or "nothing"
