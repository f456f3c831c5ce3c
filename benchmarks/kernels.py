"""Compares the compiled kernels of the torch backend with memory bandwidth and with torch.

    python -m benchmarks.kernels --out benchmarks/results/kernels.json

The weights have the shapes of SmolLM2-135M, with all 30 layers and the head, so that no weight is still in a cache when
it is needed. With one row a matrix product reads every weight once: its bytes per second are compared with a loop that
only reads. With several rows it is compared, in turns, with ``torch.nn.functional.linear`` on as many threads, in
bfloat16 for bfloat16 and else in float32. Whole layers run at contexts of 128 tokens, and on a prompt of 512; decodes
run at contexts of 64, 1024 and 4096 tokens, compared with the time to only read the same bytes. Figures are medians;
ratios above 1 mean that the kernels are faster.
"""

from __future__ import annotations

import json
import mmap
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.record import describe_run, make_parser, write_report
from parallax_backend_torch.kernels import layer, library, linear
from parallax_backend_torch.kernels.attention import Pool, Rows, Rule

KINDS: tuple[linear.WeightKind, ...] = ("float32", "bfloat16", "int8", "int8_low", "int4")
HEADS, KV_HEADS, DIM, WIDTH, INNER, VOCAB = 9, 3, 64, 576, 1536, 49152
NUM_LAYERS, PAGE, CONTEXT, PROMPT = 30, 16, 128, 512
SHAPES = ((DIM * (HEADS + 2 * KV_HEADS), WIDTH), (WIDTH, HEADS * DIM), (2 * INNER, WIDTH), (WIDTH, INNER))
WEIGHTS = NUM_LAYERS * sum(height * width for height, width in SHAPES) + VOCAB * WIDTH

CONTEXTS = (64, 1024, 4096)
READ_BYTES = 256 << 20
KV_BYTES = 2 * 2 * NUM_LAYERS * KV_HEADS * DIM
"""Bytes of the keys and values of a token in all layers, in bfloat16."""

Run = Callable[[], object]


def time_in_turn(runs: Mapping[str, Run], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            begun = time.perf_counter()
            run()
            if number:  # the first round fills caches and starts threads
                taken[name].append(time.perf_counter() - begun)
    return {name: statistics.median(each) for name, each in taken.items()}


def make_weights(dtype: torch.dtype) -> list[torch.Tensor]:
    shapes = [*(shape for _ in range(NUM_LAYERS) for shape in SHAPES), (VOCAB, WIDTH)]
    return [(torch.randn(shape) / shape[1] ** 0.5).to(dtype) for shape in shapes]


def make_reading() -> tuple[Run, int]:
    """Return a function that only reads memory, on all threads, and the number of bytes it reads."""
    native = library.find_library()
    assert native is not None, library.describe_kernels()
    memory = mmap.mmap(-1, READ_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)  # as packed weights lie
    block = torch.frombuffer(memory, dtype=torch.float32).fill_(1)
    return lambda: native.plx_read(block.data_ptr(), block.numel()), block.nbytes


def measure_reading(rounds: int) -> float:
    read, num_bytes = make_reading()
    return num_bytes / time_in_turn({"read": read}, rounds)["read"]


def measure_products(
    weights: Sequence[torch.Tensor], packed: Sequence[linear.Packed], rows: int, rounds: int
) -> dict[str, float]:
    """Return the times of all matrix products of a step, of torch, and the share of the read bandwidth."""
    read, read_bytes = make_reading()
    dtype = weights[0].dtype
    inputs = {width: torch.randn(rows, width) for width in (WIDTH, INNER)}
    theirs = {width: x.to(dtype) for width, x in inputs.items()}
    taken = time_in_turn(
        {
            "kernels": lambda: [each.apply(inputs[each.in_features]) for each in packed],
            "torch": lambda: [torch.nn.functional.linear(theirs[each.shape[1]], each) for each in weights],
            "read": read,
        },
        rounds,
    )
    num_bytes = sum(each.num_bytes for each in packed)
    return {
        "ms": round(taken["kernels"] * 1e3, 2),
        "gb_per_s": round(num_bytes / taken["kernels"] / 1e9, 2),
        "of_reading": round(num_bytes / taken["kernels"] / read_bytes * taken["read"], 2),
        "gflop_per_s": round(2 * WEIGHTS * rows / taken["kernels"] / 1e9, 1),
        f"torch_{str(dtype).removeprefix('torch.')}_gflop_per_s": round(2 * WEIGHTS * rows / taken["torch"] / 1e9, 1),
        "ratio": round(taken["torch"] / taken["kernels"], 2),
    }


def make_recipe(parts: Sequence[linear.Packed]) -> layer.Recipe:
    into, back, up, down = parts
    scalings = [layer.Scaling(torch.ones(WIDTH), 1e-5) for _ in range(2)]
    return layer.Recipe(
        attention_norm=scalings[0],
        into=into,
        back=back,
        mixer_norm=scalings[1],
        up=up,
        down=down,
        rule=Rule(DIM**-0.5),
    )


def make_place(start: int, length: int, num_rows: int) -> tuple[list[Pool], layer.StepPositions]:
    """Return a bfloat16 pool for each layer, and the place of ``num_rows`` rows of equal length in them."""
    per_row = -(-(start + length) // PAGE)
    pages = torch.randperm(per_row * num_rows).int()
    each = torch.arange(start, start + length)
    tables = pages.view(num_rows, per_row)[:, each // PAGE].long() * PAGE + each % PAGE
    starts, lengths = torch.full((num_rows,), start).int(), torch.full((num_rows,), length).int()
    rows = Rows(pages, (torch.arange(num_rows) * per_row).int(), starts, lengths, PAGE)
    angles = torch.rand(num_rows * length, DIM // 2)
    shape = (per_row * num_rows * PAGE, KV_HEADS, DIM)
    pools = [Pool(torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16()) for _ in range(NUM_LAYERS)]
    return pools, layer.StepPositions(rows, tables.flatten(), angles.cos(), angles.sin())


@dataclass(frozen=True)
class Blocks:
    """All layers of a model and its head, with random weights."""

    layers: layer.FusedLayers
    head: linear.Packed
    num_bytes: int
    """Bytes of all weights, which a step with one row reads once."""

    def prepare(self, start: int, length: int, rows: int) -> Run:
        (pools, place), hidden = make_place(start, length, rows), torch.randn(rows * length, WIDTH)

        def run() -> torch.Tensor:
            return self.head.apply(self.layers.run(hidden, pools, place)[-rows:])

        return run


def make_blocks(kind: linear.WeightKind) -> Blocks:
    packed = [linear.pack(weight, kind) for weight in make_weights(torch.float32)]
    *inner, head = packed
    layers = []
    for start in range(0, len(inner), len(SHAPES)):
        fused = layer.fuse_layer(make_recipe(inner[start : start + len(SHAPES)]), HEADS, DIM)
        assert fused is not None
        layers.append(fused)
    return Blocks(layer.FusedLayers(layers), head, sum(each.num_bytes for each in packed))


def measure_steps(blocks: Blocks, rounds: int) -> dict[str, float]:
    """Return the tokens per second of all layers and the head at 1, 8 and 32 rows, and of a prompt."""
    cases = {str(rows): (CONTEXT, 1, rows) for rows in (1, 8, 32)} | {"prompt": (0, PROMPT, 1)}
    taken = {name: time_in_turn({"step": blocks.prepare(*case)}, rounds)["step"] for name, case in cases.items()}
    return {name: round(length * rows / taken[name], 1) for name, (_, length, rows) in cases.items()}


def measure_contexts(blocks: Blocks, rounds: int) -> dict[str, dict[str, float]]:
    """Return the time of a decode of one row at each context, and its share of the read bandwidth.

    A step reads all weights, and the keys and values of all earlier tokens; the loop that only reads takes turns.
    """
    read, num_bytes = make_reading()
    found = {}
    for context in CONTEXTS:
        taken = time_in_turn({"step": blocks.prepare(context, 1, 1), "read": read}, rounds)
        needed = blocks.num_bytes + context * KV_BYTES
        limit = needed / num_bytes * taken["read"]
        figures = {"ms": taken["step"] * 1e3, "limit_ms": limit * 1e3, "of_reading": limit / taken["step"]}
        found[str(context)] = {key: round(value, 2) for key, value in figures.items()}
    return found


def measure_kernels(rounds: int) -> dict[str, Any]:
    reading = measure_reading(rounds)
    products: dict[str, Any] = {}
    for kind in KINDS:
        weights = make_weights(torch.bfloat16 if kind == "bfloat16" else torch.float32)
        packed = [linear.pack(weight, kind) for weight in weights]
        products[kind] = {str(rows): measure_products(weights, packed, rows, rounds) for rows in (1, 8, 32)}
        products[kind][str(PROMPT)] = measure_products(
            weights, packed, PROMPT, 2
        )  # torch takes many seconds for bfloat16
        print(kind, json.dumps(products[kind]), flush=True)
    models = {kind: make_blocks(kind) for kind in KINDS}
    return {
        "kernels": library.describe_kernels(),
        "reading_gb_per_s": round(reading / 1e9, 2),
        "products": products,
        "tokens_per_s": {kind: measure_steps(each, rounds) for kind, each in models.items()},
        "decode_behind": {kind: measure_contexts(each, rounds) for kind, each in models.items()},
    }


def main() -> None:
    """Measure, print, and write the report."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(library.count_cores())
    found = measure_kernels(options.rounds)
    print(json.dumps({key: value for key, value in found.items() if key != "products"}, indent=2))
    run = describe_run(["benchmarks.kernels", "--rounds", str(options.rounds)], ["torch", "parallax-backend-torch"])
    write_report(options.out, {**found, **run})


if __name__ == "__main__":
    main()
