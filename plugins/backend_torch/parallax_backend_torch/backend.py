"""Opens stages on PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec

from parallax_backend_torch.architectures import BLOCKS, name_method, reads_weights
from parallax_backend_torch.capabilities import STAGE_CAPABILITIES
from parallax_backend_torch.config import Config
from parallax_backend_torch.devices import choose_factory, claim_device, describe_device, estimate_bytes, find_room
from parallax_backend_torch.families import find_model
from parallax_backend_torch.graph_replay import make_replays
from parallax_backend_torch.layer_factory import LayerFactory
from parallax_backend_torch.malloc import load_leanly
from parallax_backend_torch.model import Model, Shape
from parallax_backend_torch.network import Runner, build_network
from parallax_backend_torch.settings import TorchSettings
from parallax_backend_torch.stage import StageParts, TorchStage
from parallax_backend_torch.store import Kept, Store, list_sizes
from parallax_backend_torch.weights import Selection, Weights, open_file
from parallax_core.api import (
    Machine,
    ParallaxError,
    Room,
    StageInfo,
    StagePlan,
    TensorSpec,
    Unsupported,
    choose_layers,
    format_bytes,
    identify_weights,
    plan_pools,
    read_config,
)
from parallax_sampling_torch.sampler import Sampler
from parallax_sampling_torch.tensors import name_dtype

CORE_FLOPS = 4e10
"""Approximate operations per second of a CPU core."""
FEWEST, MOST, ON_GPU = 16, 512, 4096
"""Tokens of a step: the least and the most on a CPU, and the number on a GPU."""
SATURATION_ROWS = {"cpu": 64}
"""Decodes in a step beyond which throughput does not grow: measured on a CPU, a token costs the same from 64 on."""
SATURATION_ON_GPU = 256
"""The same on a GPU, where throughput grows further, but attention pads all rows to the longest, which takes memory."""


class TorchBackend:
    """The backend ``torch``."""

    def open_stage(self, plan: StagePlan) -> TorchStage:
        """Load the layers of ``plan``; see `parallax_core.api.Backend.open_stage`."""
        config = Config(read_config(plan.model))
        claim = claim_device(plan)
        plan = replace(plan, device=claim.device)
        try:
            model = _find_model(plan, config)
            with load_leanly():
                stage = _open_blocks(plan, model) if model else _open_generic(plan, config)
        except BaseException:
            claim.release()
            raise
        stage.claim = claim
        return stage


@dataclass(frozen=True, slots=True)
class Loaded:
    """The properties of a stage's layers after loading."""

    plan: StagePlan
    shape: Shape
    selection: Selection
    weights: Weights


def make_stage(loaded: Loaded, runner: Runner, kept: Sequence[Kept]) -> TorchStage:
    """Return a stage of ``runner``, whose layers have the caches ``kept``."""
    shape, selection, factory = loaded.shape, loaded.selection, loaded.weights.factory
    kept = [each if each.kind == "state" else replace(each, dtype=factory.kept) for each in kept]
    weight_bytes = loaded.weights.file.kept
    plan = loaded.plan
    chunk = plan.max_batch_tokens or _choose_batch(factory, loaded.weights.file.numbers)
    num_bytes = find_room(factory.device) * plan.memory_fraction
    pools = plan_pools(list_sizes(kept), Room(num_bytes, shape.context_length, chunk, plan.max_running))
    hop = (TensorSpec(shape.hidden_size, name_dtype(factory.dtype)),)
    identity = identify_weights(loaded.plan, selection.layers, shape.num_layers)
    info = StageInfo(
        layers=selection.layers,
        num_layers=shape.num_layers,
        vocab_size=shape.vocab_size,
        context_length=shape.context_length,
        max_batch_tokens=chunk,
        pools=pools,
        device=describe_device(factory, loaded.weights.file.forms.values()),
        dtype=name_dtype(factory.dtype),
        weight_bytes=weight_bytes,
        weights_version=identity.version,
        weights_parts=identity.parts,
        capabilities=STAGE_CAPABILITIES,
        takes=hop if selection.layers.start else (),
        gives=() if selection.is_last else hop,
        saturation_rows=SATURATION_ROWS.get(factory.device.type, SATURATION_ON_GPU),
    )
    store, sampler = Store(kept, pools, factory.device), Sampler(shape.vocab_size, factory.device)
    replays = make_replays(runner, store, pools, _read_options(plan).graphs)
    return TorchStage(info, StageParts(runner, store, factory, sampler, replays))


def _find_model(plan: StagePlan, config: Config) -> Model | None:
    """Return the blocks of a model, or None if it runs on the code of transformers.

    Raises:
        Unsupported: if this backend does not read the quantisation method of its weights.
    """
    if not reads_weights(config):
        raise Unsupported(f"the weights are quantized by {name_method(config)!r}", "choose the model in full precision")
    return None if _read_options(plan).generic == "always" else find_model(config, plan.blocks)


def _open_blocks(plan: StagePlan, model: Model) -> TorchStage:
    """Open a stage of this backend's blocks."""
    shape = model.shape
    selection = Selection(choose_layers(plan, shape.num_layers), shape.num_layers, shape.is_tied)
    weights = _open_weights(plan, selection)
    network = build_network(model, selection, weights)
    kept = [model.keep_layer(index) for index in range(selection.layers.start, selection.layers.stop)]
    return make_stage(Loaded(plan, shape, selection, weights), network, kept)


def _open_generic(plan: StagePlan, config: Config) -> TorchStage:
    """Open a stage on the code of transformers.

    Raises:
        Unsupported: if that is turned off, or transformers is not installed or does not have the model.
    """
    if _read_options(plan).generic == "off" or find_spec("transformers") is None:
        message = f"there are no blocks for {config.architecture or 'a model without architectures'}"
        raise Unsupported(message, f"pip install transformers, or choose one of: {', '.join(BLOCKS)}")
    generic = import_module("parallax_backend_torch.transformers_model")
    sketch, shape = generic.read_sketch(plan.model)
    selection = Selection(choose_layers(plan, shape.num_layers), shape.num_layers, shape.is_tied)
    weights = _open_weights(plan, selection)
    with generic.hush_transformers():
        runner = generic.Generic(sketch, selection, weights)
        kept = runner.try_layers()
    return make_stage(Loaded(plan, shape, selection, weights), runner, kept)


def _open_weights(plan: StagePlan, selection: Selection) -> Weights:
    """Return the tensors of a stage, not yet read.

    Raises:
        ParallaxError: if there is not enough memory for them.
    """
    file = open_file(plan.model, selection, plan.progress)
    factory = choose_factory(plan, _read_options(plan), file.tensors.values())
    needed, room = estimate_bytes(file, factory), find_room(factory.device)
    if needed > room:
        message = f"the weights of {plan.model.name} take {format_bytes(needed)}, and {format_bytes(room)} are free"
        raise ParallaxError(message, "close other programs, choose a smaller model, or PARALLAX_TORCH__WEIGHTS=int8")
    return Weights(file, factory)


def _read_options(plan: StagePlan) -> TorchSettings:
    return TorchSettings(**plan.options)


def _choose_batch(factory: LayerFactory, numbers: int) -> int:
    """Return the number of tokens in a step of about a second."""
    if factory.device.type != "cpu":
        return ON_GPU
    return max(FEWEST, min(MOST, int(Machine().count_cores() * CORE_FLOPS / max(2 * numbers, 1))))
