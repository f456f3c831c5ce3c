"""Measures the fixed time of steps and of layers, with stages of a tiny model."""

from __future__ import annotations

import json
import math
import statistics
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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


def measure_overhead(
    backend: Backend, plan: DevicePlan, limit_s: float, clock: Callable[[], float] = time.perf_counter
) -> Overhead:
    """Return the fixed time of a step and of each layer: the median steps of two models that differ in layers only.

    Args:
        backend: opens stages of a Llama.
        plan: the device, dtype and options of the stages.
        limit_s: the time for all steps; opening the stages takes longer.
        clock: returns seconds.

    Raises:
        ParallaxError: if a stage cannot be opened or fails.
    """
    with make_private_folder() as folder:
        few_s, many_s = (
            _time_step(backend, plan, Path(folder), (layers, limit_s / 2, clock)) for layers in (FEW, MANY)
        )
    layer_s = max(0.0, (many_s - few_s) / (MANY - FEW))
    return Overhead(max(0.0, few_s - FEW * layer_s), layer_s)


def _time_step(backend: Backend, plan: DevicePlan, folder: Path, how: tuple[int, float, Callable[[], float]]) -> float:
    num_layers, limit_s, clock = how
    model = write_llama(folder / str(num_layers), num_layers)
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


def write_llama(folder: Path, num_layers: int) -> Path:
    """Write the model folder of a tiny Llama of zeros, and return it."""
    folder.mkdir()
    config = {
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
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header, end = dict[str, object](), 0
    for name, shape in _list_tensors(num_layers).items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(end))
    return folder


def _list_tensors(num_layers: int) -> dict[str, list[int]]:
    shapes = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(num_layers):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "self_attn.q_proj": [HIDDEN, HIDDEN],
                "self_attn.k_proj": [HEAD_DIM, HIDDEN],
                "self_attn.v_proj": [HEAD_DIM, HIDDEN],
                "self_attn.o_proj": [HIDDEN, HIDDEN],
                "mlp.gate_proj": [INNER, HIDDEN],
                "mlp.up_proj": [INNER, HIDDEN],
                "mlp.down_proj": [HIDDEN, INNER],
                "input_layernorm": [HIDDEN],
                "post_attention_layernorm": [HIDDEN],
            }.items()
        }
    return shapes
