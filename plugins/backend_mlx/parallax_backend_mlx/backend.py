"""Opens stages on MLX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parallax_backend_mlx.checkpoint import Checkpoint, read_checkpoint, read_json
from parallax_backend_mlx.loaded_model import LoadedModel
from parallax_backend_mlx.loading import load_network, sketch_network, sketch_settings
from parallax_backend_mlx.malloc import keep_memory
from parallax_backend_mlx.memory import find_room
from parallax_backend_mlx.model_slice import ModelSlice
from parallax_backend_mlx.network import PAGE_TOKENS, Network
from parallax_backend_mlx.rope import replace_rotations
from parallax_backend_mlx.runner_choice import RunnerPlan, TriedNetwork, plan_runner, try_network
from parallax_backend_mlx.runtime import BLAS, mx
from parallax_backend_mlx.settings import MlxSettings
from parallax_backend_mlx.stage import MlxStage
from parallax_backend_mlx.transposed_weights import turn_weights
from parallax_backend_mlx.window import limit_context
from parallax_core.api import (
    Account,
    LayerRange,
    LeasedStage,
    OutOfPages,
    ParallaxError,
    Stage,
    StageInfo,
    StagePlan,
    Unsupported,
    check_cuts,
    count_layers,
    format_bytes,
    identify_weights,
)
from parallax_stage_tools.pools import Room

LENGTHS = ("max_position_embeddings", "max_sequence_length", "max_seq_len", "n_positions", "n_ctx", "seq_length")
"""The names in config.json of the longest sequence that a model was made for."""
BATCH_TOKENS = {"gpu": 2048, "fast": 128, "slow": 16}
"""Tokens of a step that takes about a second or less: on a GPU, on a CPU with a fast BLAS, and without one."""
SATURATION_ROWS = 64
"""Decodes in a step beyond which throughput does not grow: on a CPU and on Apple's GPUs, arithmetic then takes longer
than reading the weights."""


class MlxBackend:
    """The backend ``mlx``."""

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load the model, or some of its layers; see `parallax_core.api.Backend.open_stage`."""
        return self.open_leased(plan) if plan.leased else self.open_ordinary(plan)

    def check_model(self, plan: StagePlan) -> None:
        """Refuse a model by its config.json and headers; see `parallax_core.api.ModelChecker.check_model`."""
        plan, _ = _read_config(plan)
        checkpoint = read_checkpoint(plan.model, is_part=True) if any(plan.model.glob("model*.safetensors")) else None
        if checkpoint and all((plan.model / file).exists() for file in checkpoint.tensors.values()):
            sketch_network(plan, checkpoint.tensors, checkpoint.holes)
        else:
            sketch_settings(plan)

    def open_ordinary(self, plan: StagePlan) -> MlxStage:
        """Return a stage that has pages of its own; see `open_stage`."""
        plan, config = _read_config(plan)
        network, weight_bytes = open_network(plan, _read_checkpoint(plan))
        tried = try_network(network, weight_bytes, MlxSettings(**plan.options).kernel)
        return _measure_room(plan, config, network).make_stage(tried)

    def open_leased(self, plan: StagePlan) -> LeasedStage:
        """Return a stage that serves through leases; see `open_stage`."""
        plan, config = _read_config(plan)
        model_slice, _ = load_slice(plan, _read_checkpoint(plan))
        loaded = LoadedModel(model_slice, MlxSettings(**plan.options).kernel)
        tried = loaded.find_network(loaded.layers)
        opening = _measure_room(plan, config, tried.network)
        whole = opening.make_stage(tried)
        whole.close()

        def open_part(layers: LayerRange, memory_share: float) -> MlxStage:
            return opening.make_stage(loaded.find_network(layers), memory_share)

        return LeasedStage(whole.info, open_part, whole.close)


@dataclass(frozen=True, slots=True)
class Opening:
    """What the stages of one plan have in common."""

    plan: StagePlan
    config: dict[str, Any]
    """The config.json of the model."""
    parts: Mapping[str, str]
    """The names of the loaded weights; see `StageInfo.weights_parts`."""
    room_bytes: float
    """The memory for KV pages, in bytes."""

    def make_stage(self, tried: TriedNetwork, memory_share: float = 1.0) -> MlxStage:
        """Return a stage of a network, with a share of the memory.

        Raises:
            ParallaxError: if there is no memory for a single page.
        """
        plan, config, network = self.plan, self.config, tried.network
        num_bytes = self.room_bytes * memory_share
        longest = _find_setting(config, LENGTHS) or int(num_bytes // network.shape.page_bytes) * PAGE_TOKENS
        context_length = limit_context(_find_text(config), network.list_slides(), longest)
        chunk = plan.max_batch_tokens or _choose_batch()
        room = Room(num_bytes, context_length, chunk, plan.max_running)
        runner_plan = _plan_runner(tried, room)
        identity = identify_weights(plan, network.layers, network.num_layers, self.parts)
        info = StageInfo(
            layers=network.layers,
            num_layers=network.num_layers,
            vocab_size=network.shape.vocab_size,
            context_length=context_length,
            max_batch_tokens=chunk,
            pools=runner_plan.pools,
            device=describe_device(),
            dtype=str(network.shape.dtype).rpartition(".")[2],
            weight_bytes=tried.weight_bytes,
            weights_version=identity.version,
            weights_parts=identity.parts,
            capabilities=network.list_capabilities(),
            takes=network.takes,
            gives=network.gives,
            saturation_rows=SATURATION_ROWS,
        )
        account = Account(info)
        return MlxStage(account, runner_plan.make_runner(account.pools), network.adapters)


def open_network(plan: StagePlan, checkpoint: Checkpoint) -> tuple[Network, int]:
    """Load the layers of ``plan``, ready to run any number of sequences; return the bytes of their weights too.

    Args:
        plan: the model, its layers and options.
        checkpoint: the checkpoint in the model's folder.

    Raises:
        ParallaxError, Unsupported: as `load_network`.
    """
    model_slice, weight_bytes = load_slice(plan, checkpoint)
    network = Network(model_slice)
    network.install_pick()
    return network, weight_bytes


def load_slice(plan: StagePlan, checkpoint: Checkpoint) -> tuple[ModelSlice, int]:
    """Load the layers of ``plan``, arranged for the device; see `open_network`."""
    model_slice, weight_bytes = load_network(plan, checkpoint.tensors, checkpoint.holes)
    if not _is_gpu():
        turn_weights(model_slice.model)
        replace_rotations(model_slice.model)
        mx.clear_cache()
        keep_memory()
    return model_slice, weight_bytes


def describe_device() -> str:
    """Return a description of the device, such as ``cpu (OpenBLAS 0.3.34)``."""
    if not _is_gpu():
        return f"cpu ({BLAS.name})"
    kind = "Metal" if mx.metal.is_available() else "CUDA"
    return f"{kind} ({mx.device_info()['device_name']})"


def _is_gpu() -> bool:
    return mx.default_device() == mx.Device(mx.gpu)


def _choose_batch() -> int:
    if _is_gpu():
        return BATCH_TOKENS["gpu"]
    return BATCH_TOKENS["slow" if BLAS.is_slow else "fast"]


def _read_config(plan: StagePlan) -> tuple[StagePlan, dict[str, Any]]:
    """Return the plan, without ``layers`` if they are all layers of the model, and the config.json of the model.

    Raises:
        Unsupported: if the model does not have these layers, or does not tell their number.
    """
    config = read_json(plan.model / "config.json")
    num_layers = count_layers(config)
    if num_layers is None:
        keys = "it has neither 'num_hidden_layers' nor 'text_config', nor a list such as 'layers_block_type'"
        message = f"config.json gives no number of layers: {keys}"
        raise Unsupported(message, "check that it is the config.json of a language model")
    return _check_layers(plan, num_layers), config


def _read_checkpoint(plan: StagePlan) -> Checkpoint:
    return read_checkpoint(plan.model, is_part=plan.layers is not None)


def _measure_room(plan: StagePlan, config: dict[str, Any], network: Network) -> Opening:
    """Return what stages of a network have in common; its weights are loaded."""
    parts = identify_weights(plan, network.layers, network.num_layers).parts
    return Opening(plan, config, parts, network.adapters.take_room(find_room()) * plan.memory_fraction)


def _check_layers(plan: StagePlan, count: int) -> StagePlan:
    """Return ``plan``, without ``layers`` if they are all layers of the model."""
    layers = plan.layers
    if layers is None or layers == LayerRange(0, count):
        return replace(plan, layers=None)
    if not 0 <= layers.start < layers.stop <= count:
        message = f"there are no layers {layers.start}-{layers.stop} in {plan.model.name}, which has 0-{count}"
        raise Unsupported(message, f"choose layers within 0-{count}; the last number is excluded")
    if plan.shape is not None:
        check_cuts(plan.shape, layers)
    return plan


def _find_text(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of ``config`` that describes the language model."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


def _find_setting(config: dict[str, Any], names: Sequence[str]) -> int | None:
    for part in (_find_text(config), config):
        for name in names:
            if isinstance(part.get(name), int):
                return int(part[name])
    return None


def _plan_runner(tried: TriedNetwork, room: Room) -> RunnerPlan:
    try:
        return plan_runner(tried, room)
    except OutOfPages as error:
        page, left = format_bytes(tried.network.shape.page_bytes), format_bytes(room.num_bytes)
        message = f"a page of {PAGE_TOKENS} tokens takes {page}, and {left} are free for all pages"
        raise ParallaxError(message, "close other programs, or choose a smaller model") from error
