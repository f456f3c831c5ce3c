"""Opens stages on vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parallax_backend_vllm.capabilities import STAGE_CAPABILITIES
from parallax_backend_vllm.compat import check_interface
from parallax_backend_vllm.errors import describe_error
from parallax_backend_vllm.families import HINT, LATENTS, check_cpu
from parallax_backend_vllm.probe import is_cpu_build
from parallax_backend_vllm.settings import VllmSettings
from parallax_backend_vllm.stage_config import check_family, check_plan, make_config, set_process
from parallax_backend_vllm.stage_group import StageGroup
from parallax_backend_vllm.versions import find_installed
from parallax_core.api import (
    LayerRange,
    Machine,
    ParallaxError,
    PoolInfo,
    PoolKind,
    Stage,
    StageInfo,
    StagePlan,
    TensorSpec,
    Unsupported,
    check_plain_stage,
    choose_layers,
    count_layers,
    format_bytes,
    identify_weights,
    read_config,
)

if TYPE_CHECKING:
    import torch

    from parallax_backend_vllm.compat_stage import CacheSize, StageWorker

SEQUENCES = 256
"""The most sequences of full length that the KV cache is sized for."""
GIGA = 10**9
ELSEWHERE = "choose another --backend: `parallax plugins` lists them"
DAMAGED = "the files may be incomplete, or of another model: fetch the model again"


def open_stage(plan: StagePlan, settings: VllmSettings) -> Stage:
    """Load the layers of ``plan``; see `parallax_core.api.Backend.open_stage`."""
    num_layers = count_layers(read_config(plan.model))
    if num_layers is None:
        raise Unsupported("config.json does not state the number of layers", "choose another model")
    layers = choose_layers(plan, num_layers)
    check_plan(plan, settings)
    check_plain_stage(plan, layers, "vLLM")
    set_process(plan, settings)
    from parallax_backend_vllm.compat_stage import STAGE, StageWorker

    check_interface(STAGE)
    if is_cpu_build():
        check_cpu(plan)
    config = make_config(plan, settings)
    check_family(config, layers, num_layers)
    if is_cpu_build() and config.model_config.use_mla:
        raise Unsupported(f"{', '.join(config.model_config.architectures)} {LATENTS}", HINT)
    weight_bytes = _check_room(plan, layers, num_layers, config.model_config.dtype)
    worker = StageWorker(config, StageGroup(layers, num_layers))
    _load(plan, layers, num_layers, worker)
    cache = _allocate(plan, settings, worker, SEQUENCES * config.model_config.max_model_len)
    return _make_stage(plan, (layers, num_layers), config, Opened(worker, cache, weight_bytes))


@dataclass(frozen=True, slots=True)
class Opened:
    """The loaded layers of a stage."""

    worker: StageWorker
    cache: CacheSize
    weight_bytes: int


def _check_room(plan: StagePlan, layers: LayerRange, num_layers: int, dtype: torch.dtype) -> int:
    """Return the bytes of the weights in memory, before they are loaded.

    Raises:
        ParallaxError: if they do not fit, or files are damaged or missing.
    """
    from parallax_backend_vllm.stage_weights import measure_stage

    needed = measure_stage(plan, layers, num_layers, dtype)
    room = _find_room("cpu" if is_cpu_build() else "cuda")
    if needed > room:
        place = "" if len(layers) == num_layers else f" in layers {layers.start}-{layers.stop}"
        message = (
            f"the weights of {plan.model.name}{place} take {format_bytes(needed)}, and {format_bytes(room)} are free"
        )
        raise ParallaxError(message, "close other programs, choose a smaller model, or use more stages")
    return needed


def _load(plan: StagePlan, layers: LayerRange, num_layers: int, worker: StageWorker) -> None:
    """Load the weights.

    Raises:
        Unsupported: if vLLM lacks what the family needs on this device.
        ParallaxError: if files are damaged or missing, or there is too little memory.
    """
    from parallax_backend_vllm.stage_weights import load_stage

    try:
        with load_stage(plan, layers, num_layers):
            worker.load()
    except ParallaxError:
        raise
    except (NotImplementedError, AttributeError) as error:
        family = ", ".join(map(str, read_config(plan.model).get("architectures") or ()))
        message = f"vLLM {find_installed()} cannot run {family} here: {describe_error(error)}"
        raise Unsupported(message, ELSEWHERE) from error
    except (ValueError, KeyError, AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ParallaxError(f"vLLM cannot load {plan.model.name}: {reason}", DAMAGED) from error


def _find_room(device: str) -> int:
    """Return the bytes that are free for the KV cache."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    machine = Machine()
    room = machine.free_memory()
    return machine.total_memory() if room is None else room


def _allocate(plan: StagePlan, settings: VllmSettings, worker: StageWorker, most_tokens: int) -> CacheSize:
    """Allocate the KV cache.

    Raises:
        ParallaxError: if not even one page fits.
    """
    room = _find_room(worker.device.type)
    num_bytes = int(settings.kv_cache_gb * GIGA or room * plan.memory_fraction)
    try:
        return worker.allocate_cache(num_bytes, most_tokens)
    except ValueError as error:
        message = f"{format_bytes(num_bytes)} of memory are too little for the KV cache: {error}"
        raise ParallaxError(message, "close other programs, choose a smaller model, or raise kv_cache_gb") from error


def _make_stage(plan: StagePlan, place: tuple[LayerRange, int], config: Any, opened: Opened) -> Stage:  # noqa: ANN401
    from parallax_backend_vllm.stage import VllmStage

    (layers, num_layers), model, cache = place, config.model_config, opened.cache
    kind: PoolKind = "latent" if cache.is_latent else "full"
    dtype = str(model.dtype).rpartition(".")[2]
    hop = (TensorSpec(model.get_hidden_size(), dtype),)
    identity = identify_weights(plan, layers, num_layers)
    is_last = layers.stop == num_layers
    info = StageInfo(
        layers=layers,
        num_layers=num_layers,
        vocab_size=model.get_vocab_size(),
        context_length=model.max_model_len,
        max_batch_tokens=config.scheduler_config.max_num_batched_tokens,
        pools=(PoolInfo(kind=kind, page_size=cache.block_size, num_pages=cache.num_blocks - 1),),
        device=f"{'cpu' if is_cpu_build() else 'CUDA'} (vLLM {find_installed()})",
        dtype=dtype,
        weight_bytes=opened.weight_bytes,
        weights_version=identity.version,
        weights_parts=identity.parts,
        capabilities=STAGE_CAPABILITIES,
        takes=hop if layers.start else (),
        gives=() if is_last else hop,
    )
    return VllmStage(info, opened.worker)
