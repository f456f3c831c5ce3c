"""Holds the blocks of a family to its adapter: stages do what the adapter says of their layers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from parallax_core.api import (
    Answer,
    Draw,
    DType,
    LayerRange,
    LayerShape,
    ModelAdapter,
    ModelShape,
    Outcome,
    ParallaxError,
    Part,
    Plane,
    PoolInfo,
    Stage,
    StageBatch,
    StagePlan,
    Tensor,
    Unsupported,
    describe_ends,
    list_borders,
    read_object,
)
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.holes import punch_holes
from parallax_core.testing.model import read_checkpoint
from parallax_core.testing.promise import broken

CROSSES = "What a later layer takes crosses every border before that."
GIVES = "The planes that it makes or replaces; empty: ``hidden`` of the model's width."
ONLY_DTYPE = "The only dtype in which it may cross from stage to stage"
KIND = "The kind of its cache; see `PoolInfo.kind`."
BELONGS = "Return the part of the model to which the tensor of this name belongs."
TOGETHER = "The earlier layer whose keys and values it reads in place of its own: no border may lie between the two."

CHUNKS = (12, 1, 11)
"""The tokens of each step: a prompt, a decode, and more than a window of a tiny model."""
DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
"""On devices that compute in the second, planes that must not be rounded show."""

Answers = list[dict[int, float]]
"""The log-probability of each token after each token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CutModel:
    """A model of a family, and a backend that opens stages of it."""

    folder: Path
    """The model, with random weights."""
    adapter: ModelAdapter
    open_stage: Callable[[StagePlan], Stage]
    """Opens a stage of a plan with `StagePlan.shape`, with the blocks of the family."""

    @property
    def shape(self) -> ModelShape:
        """The shape that the adapter reads."""
        return self.adapter.read_shape(read_object(self.folder / "config.json"))

    @property
    def legal(self) -> list[int]:
        """The layers that a stage may begin with by the adapter, but the first."""
        return [border.layer for border in list_borders(self.shape) if not border.obstacle]

    def find_part(self, tensor: str) -> Part | None:
        """Return the part of the model to which a tensor belongs; None: no stage needs it, as those for images."""
        try:
            return self.adapter.find_part(tensor)
        except Unsupported:
            return None

    def list_ranges(self, cuts: Sequence[int]) -> list[LayerRange]:
        """Return the layers of each stage."""
        return [LayerRange(*each) for each in pairwise((0, *cuts, len(self.shape.layers)))]

    def open(self, layers: LayerRange, dtype: DType, folder: Path | None = None) -> Stage:
        """Open a stage with next to no memory for pages; of a copy of the model, if that is given."""
        plan = StagePlan(model=folder or self.folder, layers=layers, dtype=dtype, memory_fraction=0.001)
        return self.open_stage(replace(plan, shape=self.shape))

    def run(self, stages: Sequence[Stage]) -> Answers:
        """Return the answers of a chain of stages, which it closes."""
        with Chain(stages) as chain:
            vocab, seq = chain.last.vocab_size, chain.open()
            answers: list[Answer] = []
            for number, count in enumerate(CHUNKS):
                tokens = [(37 * (at + 13 * number) + 11) % vocab for at in range(count)]
                draws = [Draw(offset, 1, vocab) for offset in range(count)]
                answers += chain.step(chain.row(seq, tokens, *draws)).answers
        return [dict(getattr(answer, "top", ())) for answer in answers]


def check_planes(model: CutModel) -> None:
    """Check that stages give each other the planes that the adapter declares, and compute what the whole model does."""
    everything = LayerRange(0, len(model.shape.layers))
    for dtype in DTYPES:
        whole = model.run([model.open(everything, dtype)])
        for cuts in dict.fromkeys(((cut,) for cut in model.legal), None) | {tuple(model.legal): None}:
            layers = model.list_ranges(cuts)
            with _told(f"{dtype} stages that begin with layers {cuts} cannot run", GIVES):
                found = model.run([WatchedStage(model.open(each, dtype), model.shape) for each in layers])
            crossing = sorted({plane for cut in cuts for plane in _name_planes(model.shape, cut)})
            fault = f"{dtype} stages that begin with layers {cuts} compute something else than the whole model, though "
            assert found == whole, broken(f"{fault}{', '.join(crossing)} crossed", CROSSES)


def check_pools(model: CutModel) -> None:
    """Check that a stage has a pool for what each of its layers keeps, wherever it begins."""
    for cut in (0, *model.legal):
        layers = LayerRange(cut, len(model.shape.layers))
        stage = model.open(layers, "float32")
        pools = {_name_pool(pool) for pool in stage.info.pools}
        stage.close()
        for index in range(layers.start, layers.stop):
            missing = sorted(set(_list_kept(model.shape.layers[index])) - pools)
            fault = f"a stage that begins with layer {cut} has the pools {sorted(pools)}, and layer {index} keeps"
            assert not missing, broken(f"{fault} {', '.join(missing)}", KIND)
        spare = sorted(pools - {name for layer in model.shape.layers[cut:] for name in _list_kept(layer)} - {"full"})
        assert not spare, broken(f"a stage that begins with layer {cut} has pools of no layer: {spare}", KIND)


def check_closure(model: CutModel, folder: Path) -> None:
    """Check that a stage needs no tensor but those of its layers by the adapter, and no keys of a layer before it."""
    names = sorted(read_checkpoint(model.folder).tensors)
    shape = model.shape
    stages = []
    for layers in model.list_ranges(model.legal):
        wanted = {*range(layers.start, layers.stop), "every"}
        wanted |= {"before"} if layers.start == 0 or (shape.is_tied and layers.stop == len(shape.layers)) else set()
        wanted |= {"after"} if layers.stop == len(shape.layers) else set()
        wanted |= {"before"} if any(_looks_up(layer) for layer in shape.layers[layers.start : layers.stop]) else set()
        kept = frozenset(name for name in names if model.find_part(name) in wanted)
        copy = folder / f"layers {layers.start}-{layers.stop}"
        shutil.copytree(model.folder, copy)
        punch_holes(copy, kept.__contains__)
        fault = f"a stage of layers {layers.start}-{layers.stop} cannot run on the tensors of its layers alone"
        with _told(fault, BELONGS):
            stages.append(model.open(layers, "float32", copy))
    with _told("stages cannot run on the tensors of their layers alone", TOGETHER):
        found = model.run(stages)
    whole = model.run([model.open(LayerRange(0, len(shape.layers)), "float32")])
    assert found == whole, broken("stages with the tensors of their layers alone compute something else", TOGETHER)


class WatchedStage:
    """Compares the planes of a stage with those of the adapter, in each step.

    Args:
        stage: the stage.
        shape: the model as the adapter reads it.
    """

    def __init__(self, stage: Stage, shape: ModelShape) -> None:
        self._stage, self.info = stage, stage.info
        self._specs = describe_ends(shape, stage.info.layers, stage.info.dtype)[1]
        self.edit, self.close = stage.edit, stage.close

    def step(self, batch: StageBatch) -> Outcome:
        """Run a batch, and check the planes."""
        result = self._stage.step(batch).wait()
        num, after = sum(len(row.tokens) for row in batch.rows), self.info.layers.stop - 1
        names, found = [spec.name for spec in self._specs], [spec.name for spec in self.info.gives]
        assert names == found, broken(f"layer {after} gives {found}, and the adapter declares {names}", GIVES)
        for spec, tensor in zip(self._specs, result.tensors, strict=True):
            declared = (num, *spec.token_shape)
            fault = f"the plane {spec.name!r} after layer {after} has the shape {tensor.shape}, and the adapter"
            assert tensor.shape == declared, broken(f"{fault} declares {declared}", GIVES)
            fault = f"the plane {spec.name!r} after layer {after} is {tensor.dtype}, and the adapter declares"
            assert tensor.dtype == spec.dtype, broken(f"{fault} {spec.dtype}", ONLY_DTYPE)
            is_wide = spec.dtype == "float32" != self.info.dtype and _is_rounded(tensor)
            fault = f"the plane {spec.name!r} after layer {after} is declared float32, and holds rounded numbers"
            assert not is_wide, broken(fault, ONLY_DTYPE)
        return Outcome(result)


def _is_rounded(tensor: Tensor) -> bool:
    """Return whether numbers in float32 would be the same in bfloat16: whether their lower halves are all zero."""
    data = bytes(tensor.data)
    return not any(data[0::4]) and not any(data[1::4])


def _looks_up(layer: LayerShape) -> bool:
    return layer.tokens is not None and layer.tokens.has_embedding


def _list_kept(layer: LayerShape) -> Iterator[str]:
    """Yield the names of the pools of what a layer keeps of a sequence."""
    if layer.kv_width or layer.state_width:
        yield f"{layer.kind} {layer.window}" if layer.window else layer.kind
    if layer.long_width:
        yield "latent"
    if layer.state_width and layer.kind != "state":
        yield "state"


def _name_pool(pool: PoolInfo) -> str:
    return f"{pool.kind} {pool.window}" if pool.window else pool.kind


def _name_planes(shape: ModelShape, cut: int) -> list[str]:
    """Return the planes that cross the border before a layer, for a person."""
    return [_describe(plane) for plane in list_borders(shape)[cut - 1].planes]


def _describe(plane: Plane) -> str:
    return f"{plane.name!r} of {plane.shape} in {plane.dtype or 'the dtype of activations'}"


@contextmanager
def _told(fault: str, promise: str) -> Iterator[None]:
    """Fail with what is wrong with a family where a backend raises."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:  # blocks of a family may raise anything
        said = error.message if isinstance(error, ParallaxError) else f"{type(error).__name__}: {error}"
        raise AssertionError(broken(f"{fault}: {said}", promise)) from error
