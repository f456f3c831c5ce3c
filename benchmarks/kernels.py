"""How near do the compiled kernels of the torch backend come to what memory and processor give?

    python -m benchmarks.kernels --out benchmarks/results/kernels.json

The weights have the shapes of SmolLM2-135M, all 30 layers of them and the head, so that none is in a cache when it is
asked for. At one row a product reads every weight once: its bytes per second are compared with a loop that only reads.
At several rows it is compared with ``torch.nn.functional.linear``, in turn with it, on as many threads: in bfloat16 for
bfloat16, else in float32. Whole layers run at contexts of 128 tokens, and on a prompt of 512. Figures are medians;
ratios above 1 mean that the kernels are faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import describe_run, write_report
from parallax_backend_torch.kernels import layer, library, linear
from parallax_backend_torch.kernels.attention import Pool, Rows, Rule

KINDS: tuple[linear.Kind, ...] = ("float32", "bfloat16", "int8", "int4")
HEADS, KV_HEADS, DIM, WIDTH, INNER, VOCAB = 9, 3, 64, 576, 1536, 49152
NUM_LAYERS, PAGE, CONTEXT, PROMPT = 30, 16, 128, 512
SHAPES = ((DIM * (HEADS + 2 * KV_HEADS), WIDTH), (WIDTH, HEADS * DIM), (2 * INNER, WIDTH), (WIDTH, INNER))
WEIGHTS = NUM_LAYERS * sum(height * width for height, width in SHAPES) + VOCAB * WIDTH

Run = Callable[[], object]


def time_in_turn(runs: Mapping[str, Run], rounds: int) -> dict[str, float]:
    """Return the median seconds of each, all of them run once in each round."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            begun = time.perf_counter()
            run()
            if number:  # the first round fills caches and starts threads
                taken[name].append(time.perf_counter() - begun)
    return {name: statistics.median(each) for name, each in taken.items()}


def make_weights(dtype: torch.dtype) -> list[torch.Tensor]:
    """Return random weights of all layers, and of the head."""
    shapes = [*(shape for _ in range(NUM_LAYERS) for shape in SHAPES), (VOCAB, WIDTH)]
    return [(torch.randn(shape) / shape[1] ** 0.5).to(dtype) for shape in shapes]


def measure_reading(rounds: int) -> float:
    """Return the bytes per second of a loop that reads 256 MiB, on all threads."""
    native = library.find_library()
    assert native is not None, library.describe_kernels()
    block = torch.rand(64 << 20)
    taken = time_in_turn({"read": lambda: native.plx_read(block.data_ptr(), block.numel())}, rounds)
    return float(block.nbytes / taken["read"])


def measure_products(kind: linear.Kind, rows: int, rounds: int) -> dict[str, float]:
    """Return what all products of a step take with some rows, and torch's."""
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    weights = make_weights(dtype)
    packed = [linear.pack(weight, kind) for weight in weights]
    inputs = {width: torch.randn(rows, width) for width in (WIDTH, INNER)}
    theirs = {width: x.to(dtype) for width, x in inputs.items()}
    taken = time_in_turn(
        {
            "kernels": lambda: [each.apply(inputs[each.in_features]) for each in packed],
            "torch": lambda: [torch.nn.functional.linear(theirs[each.shape[1]], each) for each in weights],
        },
        rounds,
    )
    return {
        "ms": round(taken["kernels"] * 1e3, 2),
        "gb_per_s": round(sum(each.num_bytes for each in packed) / taken["kernels"] / 1e9, 2),
        "gflop_per_s": round(2 * WEIGHTS * rows / taken["kernels"] / 1e9, 1),
        f"torch_{str(dtype).removeprefix('torch.')}_gflop_per_s": round(2 * WEIGHTS * rows / taken["torch"] / 1e9, 1),
        "ratio": round(taken["torch"] / taken["kernels"], 2),
    }


def make_layers(kind: linear.Kind) -> list[layer.FusedLayer]:
    """Return all layers of a model with random weights."""
    weights = iter(make_weights(torch.float32))
    layers = []
    for _ in range(NUM_LAYERS):
        into, back, up, down = (linear.pack(next(weights), kind) for _ in SHAPES)
        scalings = [layer.Scaling(torch.ones(WIDTH), 1e-5) for _ in range(2)]
        recipe = layer.Recipe(
            attention_norm=scalings[0],
            into=into,
            back=back,
            mixer_norm=scalings[1],
            up=up,
            down=down,
            rule=Rule(DIM**-0.5),
        )
        fused = layer.fuse_layer(recipe, HEADS, DIM)
        assert fused is not None
        layers.append(fused)
    return layers


def make_places(start: int, length: int, num_rows: int) -> list[layer.Place]:
    """Return where rows of one length lie, in a pool of bfloat16 for each layer."""
    per_row = -(-(start + length) // PAGE)
    pages = torch.randperm(per_row * num_rows).int()
    each = torch.arange(start, start + length)
    tables = pages.view(num_rows, per_row)[:, each // PAGE].long() * PAGE + each % PAGE
    starts, lengths = torch.full((num_rows,), start).int(), torch.full((num_rows,), length).int()
    rows = Rows(pages, (torch.arange(num_rows) * per_row).int(), starts, lengths, PAGE)
    angles = torch.rand(num_rows * length, DIM // 2)
    shape = (per_row * num_rows * PAGE, KV_HEADS, DIM)
    pools = [Pool(torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16()) for _ in range(NUM_LAYERS)]
    return [layer.Place(pool, rows, tables.flatten(), angles.cos(), angles.sin()) for pool in pools]


def measure_steps(kind: linear.Kind, rounds: int) -> dict[str, float]:
    """Return the tokens per second of all layers and the head at 1, 8 and 32 rows, and of a prompt."""
    layers, head = make_layers(kind), linear.pack(torch.randn(VOCAB, WIDTH) / WIDTH**0.5, kind)
    found = {}
    for name, (start, length, rows) in {
        "1": (CONTEXT, 1, 1),
        "8": (CONTEXT, 1, 8),
        "32": (CONTEXT, 1, 32),
        "prompt": (0, PROMPT, 1),
    }.items():
        places, given = make_places(start, length, rows), torch.randn(rows * length, WIDTH)

        def run(places: list[layer.Place] = places, hidden: torch.Tensor = given, last: int = rows) -> torch.Tensor:
            for each, place in zip(layers, places, strict=True):
                hidden = each.run(hidden, place)
            return head.apply(hidden[-last:])

        found[name] = round(rows * length / time_in_turn({"step": run}, rounds)["step"], 1)
    return found


def measure_kernels(rounds: int) -> dict[str, Any]:
    """Return every figure."""
    reading = measure_reading(rounds)
    products: dict[str, Any] = {}
    for kind in KINDS:
        products[kind] = {str(rows): measure_products(kind, rows, rounds) for rows in (1, 8, 32)}
        products[kind][str(PROMPT)] = measure_products(kind, PROMPT, 2)  # torch takes many seconds for bfloat16
        products[kind]["1"]["of_reading"] = round(products[kind]["1"]["gb_per_s"] * 1e9 / reading, 2)
        print(kind, json.dumps(products[kind]), flush=True)
    return {
        "kernels": library.describe_kernels(),
        "reading_gb_per_s": round(reading / 1e9, 2),
        "products": products,
        "tokens_per_s": {kind: measure_steps(kind, rounds) for kind in KINDS},
    }


def main() -> None:
    """Measure, print, and write what was found with what a figure needs beside it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(library.count_cores())
    found = measure_kernels(options.rounds)
    print(json.dumps(found["tokens_per_s"], indent=2))
    run = describe_run(["benchmarks.kernels", "--rounds", str(options.rounds)], ["torch", "parallax-backend-torch"])
    write_report(options.out, {**found, **run})


if __name__ == "__main__":
    main()
