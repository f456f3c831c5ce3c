"""Plans a stage: its properties and SGLang's arguments; refuses unsupported settings."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_sglang.arguments import Device, estimate_weights, make_common, read_architecture
from parallax_backend_sglang.capabilities import STAGE_CAPABILITIES
from parallax_backend_sglang.families import check_stage
from parallax_backend_sglang.settings import SglangSettings
from parallax_backend_sglang.stage_frames import LoadStage
from parallax_backend_sglang.versions import find_installed
from parallax_core.api import (
    ITEM_BYTES,
    ConfigReader,
    LayerRange,
    Machine,
    ParallaxError,
    PoolInfo,
    PoolKind,
    StageInfo,
    StagePlan,
    TensorSpec,
    Unsupported,
    check_device,
    choose_layers,
    count_layers,
    format_bytes,
    identify_weights,
    read_config,
    refuse_leases,
)
from parallax_stage_tools.pools import Room, plan_pools

DTYPES = ("float32", "bfloat16", "float16")
ROWS = 64
"""The most rows that SGLang computes at once, where the plan does not say; a step with more is computed in parts."""
ON_CPU, ON_GPU = 512, 2048
"""The most tokens in a step, where the plan does not say."""
FRACTION = 0.95
"""SGLang's own limit of the memory for weights and KV cache, which the stage has planned already."""
UNKNOWN = 2**33
"""Bytes that are taken to be free where the machine does not say."""
HINT = "serve the model whole: --backend sglang without --stages and --layers"


def plan_stage(plan: StagePlan, settings: SglangSettings, device: Device) -> LoadStage:
    """Return the message that loads a stage.

    Raises:
        Unsupported: if a stage cannot do what the plan or the settings ask for; names the setting.
        ParallaxError: if the model is damaged, or there is too little memory.
    """
    refuse_leases(plan, "sglang")
    check_settings(settings)
    check_device(plan, DTYPES, [plan.device])  # `choose_device` has checked the device
    config = read_config(plan.model)
    info = _describe(plan, settings, device, ConfigReader(config))
    arguments = make_common(plan.model, info.dtype, settings, device) | {
        "context_length": info.context_length,
        "max_total_tokens": info.pools[0].num_pages * info.pools[0].page_size,
        "max_running_requests": min(info.max_batch_tokens, plan.max_running or ROWS),
        "mem_fraction_static": FRACTION,
        "page_size": 1,
        "disable_radix_cache": True,
        "disable_overlap_schedule": True,
        "disable_cuda_graph": True,
    }
    return LoadStage(read_architecture(config), str(plan.model), arguments, info)


def check_settings(settings: SglangSettings) -> None:
    """Refuse settings that only a whole model has.

    Raises:
        Unsupported: naming the setting.
    """
    if settings.tensor_parallel > 1:
        raise Unsupported("a stage on SGLang computes on one GPU, not by tensor_parallel", HINT)
    if settings.max_loras:
        raise Unsupported("a stage on SGLang takes no LoRA adapters: max_loras is for whole models", HINT)
    if settings.mem_fraction_static:
        raise Unsupported("a stage on SGLang takes memory by memory_fraction, not by mem_fraction_static", HINT)
    if settings.prefix_caching == "off":
        raise Unsupported("Parallax keeps the prefix cache of a stage, so prefix_caching cannot turn it off", HINT)


def _describe(plan: StagePlan, settings: SglangSettings, device: Device, reader: ConfigReader) -> StageInfo:
    num_layers = count_layers(read_config(plan.model)) or reader.count("num_hidden_layers")
    layers = choose_layers(plan, num_layers)
    check_stage(plan, layers)
    dtype = plan.dtype if plan.dtype != "auto" else "float32" if device.is_cpu else "bfloat16"
    chunk = plan.max_batch_tokens or (ON_CPU if device.is_cpu else ON_GPU)
    context = reader.count("max_position_embeddings")
    context = min(context, settings.context_length or context)
    hop = (TensorSpec(reader.count("hidden_size"), dtype),)
    identity = identify_weights(plan, layers, num_layers)
    computed = replace(plan, dtype=dtype)
    room = Room(_find_room(computed, device, len(layers) / num_layers), context, chunk, plan.max_running)
    return StageInfo(
        layers=layers,
        num_layers=num_layers,
        vocab_size=reader.count("vocab_size"),
        context_length=context,
        max_batch_tokens=chunk,
        pools=_plan_pools(reader, layers, ITEM_BYTES[dtype], room, settings.max_total_tokens),
        device=f"{'cpu' if device.is_cpu else f'cuda:{device.index}'} (SGLang {find_installed()})",
        dtype=dtype,
        weight_bytes=0,
        weights_version=identity.version,
        weights_parts=identity.parts,
        capabilities=STAGE_CAPABILITIES,
        takes=hop if layers.start else (),
        gives=hop if layers.stop < num_layers else (),
    )


def _plan_pools(
    reader: ConfigReader, layers: LayerRange, item_bytes: int, room: Room, most_tokens: int
) -> tuple[PoolInfo]:
    """Return the pool of keys and values, or of latents, of at most ``most_tokens`` tokens; 0: as many as fit."""
    kind: PoolKind = "full"
    if reader.has("kv_lora_rank"):
        kind, width = "latent", reader.count("kv_lora_rank") + reader.count("qk_rope_head_dim")
    else:
        heads = reader.count("num_attention_heads")
        width = reader.count("head_dim", default=max(1, reader.count("hidden_size") // heads))
        width *= 2 * reader.count("num_key_value_heads", default=heads)
    [pool] = plan_pools({(kind, 0): len(layers) * width * item_bytes}, room)
    most = most_tokens // pool.page_size or pool.num_pages
    return (replace(pool, num_pages=min(pool.num_pages, most)),)


def _find_room(plan: StagePlan, device: Device, share: float) -> float:
    """Return the bytes for the KV cache, once a ``share`` of the weights is loaded.

    Raises:
        ParallaxError: if they do not fit.
    """
    free, needed = _find_free(device), estimate_weights(plan.model, plan.dtype) * share
    if needed >= free:
        message = f"the weights of these layers take {format_bytes(needed)}, and {format_bytes(free)} are free"
        raise ParallaxError(message, "close other programs, or open fewer layers")
    return (free - needed) * plan.memory_fraction


def _find_free(device: Device) -> int:
    """Return the bytes of free memory of the device."""
    if device.is_cpu:
        return Machine().free_memory() or UNKNOWN
    import torch

    return int(torch.cuda.mem_get_info(device.index)[0])
