"""Opens stages on PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from parallax_backend_torch.adapters import AdapterTable
from parallax_backend_torch.architectures import advise, reads_weights
from parallax_backend_torch.config import Config
from parallax_backend_torch.devices import (
    choose_factory,
    claim_device,
    describe_device,
    estimate_bytes,
    find_room,
    free_memory,
)
from parallax_backend_torch.gpu_claim import GpuClaim
from parallax_backend_torch.loaded import LoadedLayers
from parallax_backend_torch.malloc import load_leanly
from parallax_backend_torch.model import Model, Shape
from parallax_backend_torch.network import Runner, build_network
from parallax_backend_torch.settings import TorchSettings
from parallax_backend_torch.store import CacheSpec, keep_as
from parallax_backend_torch.tensor_file import Selection, open_file
from parallax_backend_torch.weights import Weights
from parallax_core.api import (
    LeasedStage,
    ParallaxError,
    Stage,
    StagePlan,
    Unsupported,
    check_cuts,
    choose_layers,
    format_bytes,
    identify_weights,
    read_config,
)

logger = logging.getLogger(__name__)


class TorchBackend:
    """The backend ``torch``."""

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load the layers of ``plan``; see `parallax_core.api.Backend.open_stage`."""
        config = Config(read_config(plan.model))
        claim = claim_device(plan)
        plan = replace(plan, device=claim.device)
        try:
            model = _find_model(plan, config)
            with load_leanly():
                loaded = _load_blocks(plan, model) if model else _load_generic(plan, config)
                if plan.leased:
                    return lease_stages(loaded, claim)
                stage = loaded.open_whole()
        except BaseException:
            claim.release()
            raise
        stage.claim = claim
        return stage

    def check_model(self, plan: StagePlan) -> None:
        """Refuse a model by its config.json; see `parallax_core.api.ModelChecker.check_model`."""
        config = Config(read_config(plan.model))
        model = _find_model(plan, config)
        shape = model.shape if model else _check_generic(plan, config)
        layers = choose_layers(plan, shape.num_layers)
        for index in range(layers.start, layers.stop):
            if model:
                model.keep_layer(index)


def lease_stages(loaded: LoadedLayers, claim: GpuClaim) -> LeasedStage:
    """Return a stage whose leases share the loaded layers."""
    layers, device = loaded.selection.layers, loaded.factory.device

    def release() -> None:
        claim.release()
        if device.type != "cpu":
            free_memory(device)

    return LeasedStage(loaded.describe(layers, 1.0), loaded.open_part, release)


def _find_model(plan: StagePlan, config: Config) -> Model | None:
    """Return the blocks of a model, or None if it runs on the code of transformers.

    Raises:
        Unsupported: if this backend does not read the quantisation method of its weights, or the model has a setting
            that its blocks do not support.
    """
    if not reads_weights(config):
        message = f"this backend does not read the form of the weights: {config.method}"
        raise Unsupported(message, advise(config))
    if plan.blocks is None or _read_options(plan).generic == "always":
        return None
    return cast("Callable[[Config], Model]", plan.blocks)(config)


@dataclass(frozen=True, slots=True)
class Loading:
    """The layers of a plan, and their tensors."""

    plan: StagePlan
    shape: Shape
    selection: Selection
    weights: Weights


def _load_blocks(plan: StagePlan, model: Model) -> LoadedLayers:
    """Load layers as the blocks of the model's adapter."""
    loading = _open_weights(plan, model.shape)
    factory = loading.weights.factory
    factory = replace(factory, adapters=AdapterTable(loading.selection.layers, factory.device, factory.adapter_dtype))
    loading = replace(loading, weights=replace(loading.weights, factory=factory))
    layers, dtype = loading.selection.layers, factory.kept
    kept = [keep_as(model.keep_layer(index), dtype) for index in range(layers.start, layers.stop)]
    return _keep_layers(loading, build_network(model, loading.selection, loading.weights), kept)


def _sketch_generic(plan: StagePlan, config: Config) -> tuple[Any, Shape]:
    """Return the model of transformers, without weights, and its shape.

    Raises:
        Unsupported: if that is turned off, or transformers is not installed or does not have the model.
    """
    if _read_options(plan).generic == "off" or find_spec("transformers") is None:
        message = f"there are no blocks for {config.architecture or 'a model without architectures'}"
        raise Unsupported(message, "pip install -U parallax-models transformers, which know many models")
    found: tuple[Any, Shape] = import_module("parallax_backend_torch.transformers_model").read_sketch(plan.model)
    return found


def _check_generic(plan: StagePlan, config: Config) -> Shape:
    """Return the shape of a model of transformers; raises Unsupported as `_sketch_generic`, or `check_sketch`, does."""
    sketch, shape = _sketch_generic(plan, config)
    import_module("parallax_backend_torch.sketch_check").check_sketch(sketch)
    return shape


def _load_generic(plan: StagePlan, config: Config) -> LoadedLayers:
    """Load layers into the code of transformers; raises Unsupported as `_sketch_generic` does."""
    sketch, shape = _sketch_generic(plan, config)
    generic = import_module("parallax_backend_torch.transformers_model")
    loading = _open_weights(replace(plan, shape=None), shape)  # it carries ``hidden`` alone
    with generic.hush_transformers():
        runner = generic.Generic(sketch, loading.selection, loading.weights)
        kept = [keep_as(each, loading.weights.factory.kept) for each in runner.try_layers()]
    return _keep_layers(loading, runner, kept)


def _open_weights(plan: StagePlan, shape: Shape) -> Loading:
    """Return the tensors of a stage, not yet read.

    Raises:
        ParallaxError: if there is not enough memory for them.
        Unsupported: if the model cannot be cut where the layers begin or end.
    """
    selection = Selection(
        choose_layers(plan, shape.num_layers), shape.num_layers, shape.is_tied, shape.every, shape.after, shape.mapped
    )
    if plan.shape is not None:
        check_cuts(plan.shape, selection.layers)
    wanted = _read_options(plan).weights
    is_exact = wanted == "float32" or (wanted == "auto" and plan.dtype == "float32")
    file = open_file(plan.model, selection, plan.progress, is_exact=is_exact)
    factory = choose_factory(plan, _read_options(plan), file.tensors.values(), has_codes=bool(file.coded))
    file.keeps_codes = factory.keeps_blocks and factory.device.type == "cpu" and plan.dtype != "float32"
    needed, room = estimate_bytes(file, factory), find_room(factory.device)
    if needed > room:
        message = f"the weights of {plan.model.name} take {format_bytes(needed)}, and {format_bytes(room)} are free"
        raise ParallaxError(message, "close other programs, choose a smaller model, or PARALLAX_TORCH__WEIGHTS=int8")
    if any(file.find_kind(name) is None for name in file.coded):
        logger.info("weights dequantised model=%s to=%s", plan.model.name, describe_device(factory))
    return Loading(plan, shape, selection, Weights(file, factory))


def _keep_layers(loading: Loading, runner: Runner, kept: Sequence[CacheSpec]) -> LoadedLayers:
    """Return loaded layers without their files, and measure the memory that is left."""
    plan, selection, factory = loading.plan, loading.selection, loading.weights.factory
    room = find_room(factory.device)
    return LoadedLayers(
        plan=plan,
        shape=loading.shape,
        selection=selection,
        factory=factory,
        sizes=loading.weights.file.sizes,
        runner=runner,
        kept=kept,
        parts=identify_weights(plan, selection.layers, selection.num_layers).parts,
        room_bytes=(factory.adapters.take_room(room) if factory.adapters else room) * plan.memory_fraction,
    )


def _read_options(plan: StagePlan) -> TorchSettings:
    return TorchSettings(**plan.options)
