"""Measures the fixed time of steps and of layers, with stages of a tiny model."""

from __future__ import annotations

import json
import math
import statistics
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from parallax_core.api import (
    Backend,
    DevicePlan,
    Draw,
    Drop,
    Open,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StagePlan,
    Truncate,
    make_private_folder,
)

FEW, MANY = 2, 8
"""Layers of the two models whose steps are compared."""
HIDDEN, INNER, VOCAB, HEAD_DIM = 64, 128, 256, 32
"""Widths of the model, whose weights take no time to read."""
EXPERTS, CHOSEN, EXPERT_INNER = 16, 8, 32
"""The experts of a layer, those that a token meets, and their inner width."""
EXPERT_CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": EXPERT_INNER,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
"""What config.json has besides, if layers have experts."""
MEMORY_FRACTION = 0.02
"""Enough for a page on a device with 2 MiB."""
WARM_STEPS = 3
MOST_STEPS = 128
"""Decodes that are timed, all of the second token of a sequence: it takes a single page."""


class Overhead(NamedTuple):
    """The fixed time of a step of one decode, in seconds."""

    step_s: float
    layer_s: float
    """Of each layer in it."""
    expert_layer_s: float
    """Of each layer with experts."""


def measure_overhead(
    backend: Backend, plan: DevicePlan, limit_s: float, clock: Callable[[], float] = time.perf_counter
) -> Overhead:
    """Return the fixed time of a step and of each layer: the median steps of two models that differ in layers only.

    A third one has experts in its layers.

    Args:
        backend: opens stages of a Llama, and of a Qwen3 with experts.
        plan: the device, dtype and options of the stages.
        limit_s: the time for all steps; opening the stages takes longer.
        clock: returns seconds.

    Raises:
        ParallaxError: if a stage cannot be opened or fails.
    """
    with make_private_folder() as folder:
        models = [write_llama(Path(folder) / f"{layers}", layers) for layers in (FEW, MANY)]
        models.append(write_llama(Path(folder) / "experts", FEW, EXPERTS))
        few_s, many_s, experts_s = (_time_step(backend, plan, model, limit_s / 3, clock) for model in models)
    layer_s = max(0.0, (many_s - few_s) / (MANY - FEW))
    step_s = max(0.0, few_s - FEW * layer_s)
    return Overhead(step_s, layer_s, layer_s + max(0.0, experts_s - few_s) / FEW)


def _time_step(backend: Backend, plan: DevicePlan, model: Path, limit_s: float, clock: Callable[[], float]) -> float:
    stage = backend.open_stage(
        StagePlan(
            model=model,
            dtype=plan.dtype,
            device=plan.device,
            memory_fraction=MEMORY_FRACTION,
            options=plan.options,
        )
    )
    try:
        return _time_decodes(stage, limit_s, clock)
    finally:
        stage.close()


def _time_decodes(stage: Stage, limit_s: float, clock: Callable[[], float]) -> float:
    seq, seconds = SeqId(0), list[float]()
    spec = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0.0))
    stage.edit([Open(seq, spec)])
    stage.step(StageBatch((Row(seq, 0, (1,), (Draw(0),)),))).wait()
    end = clock() + limit_s
    for number in range(WARM_STEPS + MOST_STEPS):
        begun = clock()
        if number > WARM_STEPS and begun > end:
            break
        stage.step(StageBatch((Row(seq, 1, (1,), (Draw(0),)),))).wait()
        seconds.append(clock() - begun)
        stage.edit([Truncate(seq, 1)])
    stage.edit([Drop(seq)])
    return statistics.median(seconds[WARM_STEPS:])


def write_llama(folder: Path, num_layers: int, num_experts: int = 0) -> Path:
    """Write the model folder of a tiny Llama of zeros, or of a Qwen3 with experts, and return it."""
    folder.mkdir()
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": num_layers,
        "num_attention_heads": HIDDEN // HEAD_DIM,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    if num_experts:
        config |= EXPERT_CONFIG | {"num_experts": num_experts}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header, end = dict[str, object](), 0
    for name, shape in _list_tensors(num_layers, num_experts).items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(end))
    return folder


def _list_tensors(num_layers: int, num_experts: int) -> dict[str, list[int]]:
    mlps = [f"mlp.experts.{number}." for number in range(num_experts)] or ["mlp."]
    inner = EXPERT_INNER if num_experts else INNER
    apart = {"self_attn.q_norm": [HEAD_DIM], "self_attn.k_norm": [HEAD_DIM], "mlp.gate": [num_experts, HIDDEN]}
    shapes = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(num_layers):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "self_attn.q_proj": [HIDDEN, HIDDEN],
                "self_attn.k_proj": [HEAD_DIM, HIDDEN],
                "self_attn.v_proj": [HEAD_DIM, HIDDEN],
                "self_attn.o_proj": [HIDDEN, HIDDEN],
                "input_layernorm": [HIDDEN],
                "post_attention_layernorm": [HIDDEN],
                **{f"{mlp}{name}_proj": [inner, HIDDEN] for mlp in mlps for name in ("gate", "up")},
                **{f"{mlp}down_proj": [HIDDEN, inner] for mlp in mlps},
                **(apart if num_experts else {}),
            }.items()
        }
    return shapes
