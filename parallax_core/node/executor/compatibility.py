"""Checks that the stages of a pipeline fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from parallax_core.base.errors import ParallaxError
from parallax_core.contracts.model import HIDDEN
from parallax_core.contracts.stage import StageInfo
from parallax_core.contracts.tensor import FLOATS, TensorSpec


def check_stages(infos: Sequence[StageInfo]) -> None:
    """Check that the stages, in this order, hold each layer once and that each takes what the one before it gives.

    Tensors are compared by name, so that two of one width cannot be exchanged. The dtype may differ from the one the
    next stage computes in, unless it is exact: that stage converts them.

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
    """Return whether the next stage can take the tensors, as they are or converted."""
    pairs = zip(gives, takes, strict=False)
    return len(gives) == len(takes) and all(one.name == other.name and can_take(one, other) for one, other in pairs)


def can_take(given: TensorSpec, taken: TensorSpec) -> bool:
    """Return whether a stage can take a tensor, as it is or converted to another float; names are not compared."""
    if given.token_shape != taken.token_shape:
        return False
    is_exact = given.is_exact or taken.is_exact
    return given.dtype == taken.dtype or (not is_exact and {given.dtype, taken.dtype} <= FLOATS)


def show_specs(specs: Sequence[TensorSpec]) -> str:
    """Return a description of tensors, such as ``float32 of width 576``."""
    return " + ".join(map(_show_spec, specs)) or "nothing"


def _show_spec(spec: TensorSpec) -> str:
    name = "" if spec.name == HIDDEN else f"{spec.name} as "
    streams = "".join(f"{size} x " for size in spec.shape)
    return f"{name}{spec.dtype} of width {streams}{spec.width}{' exactly' * spec.is_exact}"
