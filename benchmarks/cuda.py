"""Measures the torch backend on a CUDA device beside the limits of that device, and beside transformers.

    python -m benchmarks.cuda --out benchmarks/results/cuda.json

The model has random weights in bfloat16 and the shape of Llama 3.1 8B; ``--layers`` makes it smaller, for a trial.
Nothing is downloaded. All sides get the same weights and the same tokens, one side after the other.

- ``device``: what the device reaches here: bytes per second of a copy, and operations per second of a product.
- ``sides``: of each side ``decode_ms``, the milliseconds of a decode step of 1 to 128 sequences behind 1,024 tokens
  each, with the most likely token (``sampled_ms``: with a random one); ``prompt_ms``, those of prompts by themselves;
  ``open_s``, the seconds to load the model; ``peak_bytes``, the most memory in use; ``idle``, the share of decode
  steps in which the device computes nothing, while a profiler watches, which makes it larger.
- ``first_token_s``: the seconds from the start of a process to its first token, with all kernels compiled before.
- ``bound``: for a decode step the time to read the weights and the keys and values once, for a prompt the time of its
  products, at the device's rates; ``of_bound`` is this time divided by the measured one.
- ``ratios``: the time of transformers (its ``sdpa`` attention and dynamic cache) to ours; above 1 we are faster.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.parity import prefill
from benchmarks.record import describe_run, make_parser, write_report
from parallax_core.api import Draw, Drop, Open, Row, Sampling, SeqId, SequenceSpec, Stage, StageBatch, StagePlan
from tests.support.torch_backend import TorchBackend

ROWS = (1, 8, 32, 128)
CONTEXT, STEPS, WARM_UP = 1024, 24, 6
PROMPTS = (512, 2048, 8192)
TURNS = 3
FIRST_PROMPT = 128
SIZE = 8192
"""Rows and columns of the product that measures the device."""
COPIED = 2**32
"""Bytes of the copy that measures the device."""
MEMORY = 0.7
OPTIONS: dict[str, dict[str, str]] = {
    "parallax": {},
    "parallax, no graphs": {"graphs": "off"},
    "parallax, no kernels": {"kernels": "off"},
}
"""Our sides, with the options that differ from the defaults."""
VERSIONS = ("torch", "transformers", "parallax-backend-torch", "parallax-core")
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What the device reaches, and what a model asks of it."""

    bytes_per_s: float
    operations_per_s: float
    matrix_bytes: int
    """The bytes of the matrices that a step reads."""
    head_bytes: int
    """Those of the head, which a prompt needs for one token only."""
    kv_bytes: int
    """The bytes of the keys and values of a token, in all layers."""

    def bound_decode(self, rows: int) -> float:
        return (self.matrix_bytes + rows * CONTEXT * self.kv_bytes) / self.bytes_per_s * 1e3

    def bound_prompt(self, tokens: int) -> float:
        read = (self.matrix_bytes - self.head_bytes) * tokens + self.head_bytes
        return read / self.operations_per_s * 1e3  # two operations for the two bytes of a weight


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def time_work(device: str, work: Callable[[], object], turns: int = 10) -> float:
    seconds = []
    for _ in range(turns + 2):
        wait(device)
        begun = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[2:])


def time_copy(device: str, size: int) -> float:
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return time_work(device, lambda: target.copy_(source))


def time_product(device: str, size: int) -> float:
    one, other = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return time_work(device, lambda: one @ other)


def measure_limits(device: str, layers: int, size: int = SIZE, copied: int = COPIED) -> Limits:
    numbers = sum(torch.Size(shape).numel() for name, shape in list_tensors(layers) if "embed" not in name)
    return Limits(
        bytes_per_s=2 * copied / time_copy(device, copied),
        operations_per_s=2 * size**3 / time_product(device, size),
        matrix_bytes=2 * numbers,
        head_bytes=2 * CONFIG["vocab_size"] * CONFIG["hidden_size"],
        kv_bytes=2 * 2 * CONFIG["num_key_value_heads"] * CONFIG["head_dim"] * layers,
    )


def list_tensors(layers: int, config: Mapping[str, Any] = CONFIG) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, wide = config["hidden_size"], config["intermediate_size"]
    inner, shared = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embed_tokens.weight", (config["vocab_size"], width)
    for layer in range(layers):
        parts = {
            "self_attn.q_proj": (inner, width),
            "self_attn.k_proj": (shared, width),
            "self_attn.v_proj": (shared, width),
            "self_attn.o_proj": (width, inner),
            "mlp.gate_proj": (wide, width),
            "mlp.up_proj": (wide, width),
            "mlp.down_proj": (width, wide),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }
        yield from ((f"model.layers.{layer}.{name}.weight", shape) for name, shape in parts.items())
    yield "model.norm.weight", (width,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], width)


def make_model(folder: Path, layers: int, device: str, config: Mapping[str, Any] = CONFIG) -> None:
    random = torch.Generator(device).manual_seed(0)
    files: dict[str, dict[str, torch.Tensor]] = {}
    for name, shape in list_tensors(layers, config):
        drawn = torch.randn(shape, generator=random, device=device, dtype=torch.bfloat16) / shape[-1] ** 0.5
        weight = torch.ones(shape, dtype=torch.bfloat16) if len(shape) == 1 else drawn.cpu()
        part = name.split(".")[2] if ".layers." in name else "ends"
        files.setdefault(f"model-{part}.safetensors", {})[name] = weight
    for file, tensors in files.items():
        save_file(tensors, folder / file, {"format": "pt"})
    index = {name: file for file, tensors in files.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))


class Ours:
    """The torch backend, with the whole model as one stage.

    Args:
        folder: the folder of the model.
        device: its device.
        options: options of the backend other than the defaults; see `TorchSettings`.
    """

    def __init__(self, folder: Path, device: str, options: Mapping[str, str]) -> None:
        plan = StagePlan(model=folder, dtype="bfloat16", device=device, memory_fraction=MEMORY, options=dict(options))
        self._stage: Stage = TorchBackend().open_stage(plan)
        self._used = 0

    def begin(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Callable[[], object]:
        spec = SequenceSpec(prompt_length=len(prompts[0]), sampling=sampling)
        ids = [SeqId(self._used + number) for number in range(len(prompts))]
        self._used += len(prompts)
        self._stage.edit([Open(each, spec) for each in ids])
        for each, prompt in zip(ids, prompts, strict=True):
            prefill(self._stage, each, prompt)
        place = len(prompts[0])

        def step() -> None:
            nonlocal place
            rows = tuple(Row(each, place, (100 + number,), (Draw(0),)) for number, each in enumerate(ids))
            self._stage.step(StageBatch(rows, step=place)).wait()
            place += 1

        self._ids = ids
        return step

    def end(self) -> None:
        self._stage.edit([Drop(each) for each in self._ids])

    def close(self) -> None:
        self._stage.close()


class Theirs:
    """The model of transformers, greedy.

    Args:
        folder: the folder of the model.
        device: its device.
    """

    def __init__(self, folder: Path, device: str) -> None:
        from transformers import AutoModelForCausalLM

        self._device = device
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
        self._model: Any = loaded.to(device)

    def begin(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Callable[[], object]:
        assert sampling.temperature == 0, "only the largest score is drawn here"
        with torch.inference_mode():
            caches = self._model(torch.tensor(prompts, device=self._device), use_cache=True, logits_to_keep=1)
        kept = caches.past_key_values
        tokens = torch.arange(100, 100 + len(prompts), device=self._device)[:, None]

        def step() -> list[int]:
            with torch.inference_mode():
                found = self._model(tokens, past_key_values=kept, use_cache=True).logits[:, -1].argmax(-1)
            drawn: list[int] = found.tolist()
            return drawn

        return step

    def end(self) -> None:
        gc.collect()

    def close(self) -> None:
        self._model = None
        gc.collect()
        torch.cuda.empty_cache()


Side = Ours | Theirs


@contextmanager
def open_side(make: Callable[[], Side]) -> Iterator[tuple[Side, float]]:
    begun = time.perf_counter()
    side = make()
    try:
        yield side, time.perf_counter() - begun
    finally:
        side.close()


def make_prompts(rows: int, tokens: int) -> list[list[int]]:
    random = torch.Generator().manual_seed(rows)
    found: list[list[int]] = torch.randint(1000, 100000, (rows, tokens), generator=random).tolist()
    return found


def decode(side: Side, device: str, rows: int, sampling: Sampling) -> float:
    step = side.begin(make_prompts(rows, CONTEXT), sampling)
    for _ in range(WARM_UP):
        step()
    seconds = time_work(device, step, STEPS)
    side.end()
    return round(seconds * 1e3, 3)


def run_prompt(side: Side, device: str, tokens: int) -> float:
    def work() -> None:
        side.begin(prompts, Sampling(temperature=0))
        side.end()

    prompts = make_prompts(1, tokens)
    return round(time_work(device, work, TURNS) * 1e3, 2)


def measure_idle(side: Side, rows: int) -> float:
    step = side.begin(make_prompts(rows, CONTEXT), Sampling(temperature=0))
    for _ in range(WARM_UP):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(WARM_UP):
            step()
        torch.cuda.synchronize()
    side.end()
    on_device = [each for each in profile.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    times = sorted((each.time_range.start, each.time_range.end) for each in on_device)
    busy, done = 0.0, float(times[0][0])
    for start, end in times:  # kernels overlap
        busy += max(0.0, end - max(start, done))
        done = max(done, end)
    return round(float(1 - busy / (done - times[0][0])), 3)


def run_first_token(folder: Path, device: str) -> None:
    side = Ours(folder, device, {})
    side.begin(make_prompts(1, FIRST_PROMPT), Sampling(temperature=0))
    side.close()


def time_first_token(folder: Path, device: str) -> float:
    command = [sys.executable, "-m", "benchmarks.cuda", "--device", device, "--first-token", str(folder)]
    begun = time.perf_counter()
    subprocess.run(command, check=True)
    return round(time.perf_counter() - begun, 1)


def measure_side(make: Callable[[], Side], device: str, rows: Sequence[int], prompts: Sequence[int]) -> dict[str, Any]:
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    with open_side(make) as (side, seconds):
        greedy = Sampling(temperature=0)
        found: dict[str, Any] = {
            "open_s": round(seconds, 1),
            "decode_ms": {str(each): decode(side, device, each, greedy) for each in rows},
            "prompt_ms": {str(each): run_prompt(side, device, each) for each in prompts},
        }
        if isinstance(side, Ours):
            found["sampled_ms"] = {str(each): decode(side, device, each, Sampling(temperature=0.7)) for each in rows}
        if device.startswith("cuda"):
            if isinstance(side, Ours):
                found["idle"] = {str(each): measure_idle(side, each) for each in rows}
            found["peak_bytes"] = torch.cuda.max_memory_allocated()
    print(json.dumps(found), flush=True)
    return found


def compare(limits: Limits, sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    ours, theirs = sides["parallax"], sides["transformers"]
    bounds = {"decode_ms": limits.bound_decode, "prompt_ms": limits.bound_prompt}
    return {
        "bound": {what: {n: round(bound(int(n)), 3) for n in ours[what]} for what, bound in bounds.items()},
        "of_bound": {
            what: {n: round(bound(int(n)) / ms, 3) for n, ms in ours[what].items()} for what, bound in bounds.items()
        },
        "ratios": {what: {n: round(theirs[what][n] / ms, 2) for n, ms in ours[what].items()} for what in bounds},
    }


def run(device: str, layers: int, rows: Sequence[int], prompts: Sequence[int]) -> dict[str, Any]:
    small = {} if device.startswith("cuda") else {"size": 512, "copied": 2**24}
    limits = measure_limits(device, layers, **small)
    shared = Path("/dev/shm")  # noqa: S108 -- memory: the disk is not measured
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        folder = Path(name)
        make_model(folder, layers, device)
        makers: dict[str, Callable[[], Side]] = {
            name: partial(Ours, folder, device, options) for name, options in OPTIONS.items()
        }
        makers["transformers"] = partial(Theirs, folder, device)
        sides = {name: measure_side(make, device, rows, prompts) for name, make in makers.items()}
        first_token_s = time_first_token(folder, device)
    reached = {"tb_per_s": round(limits.bytes_per_s / 1e12, 2), "tflop_per_s": round(limits.operations_per_s / 1e12, 1)}
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    found = {"device": {"name": name, "layers": layers, **reached}, "first_token_s": first_token_s, "sides": sides}
    return found | compare(limits, sides)


def main() -> None:
    """Run from the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--prompts", type=int, nargs="+", default=list(PROMPTS))
    parser.add_argument("--first-token", type=Path, metavar="FOLDER", help="only draw a token of a model")
    options = parser.parse_args()
    if options.first_token:
        run_first_token(options.first_token, options.device)
        return
    found = run(options.device, options.layers, options.rows, options.prompts)
    print(json.dumps({name: value for name, value in found.items() if name != "sides"}, indent=1))
    write_report(options.out, {**describe_run(["benchmarks.cuda"], VERSIONS), **found})


if __name__ == "__main__":
    main()
