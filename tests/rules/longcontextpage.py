"""Generates the tables on long contexts of the performance page, from ``benchmarks/results/long-context.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REPORT = Path(__file__).parents[2] / "benchmarks/results/long-context.json"
ATTENTION = "attention"
"""The part of the report with attention by itself."""
ABOUT = [
    "The model has random weights in bfloat16, the shape of SmolLM2-135M and room for 32,768 tokens. The end of a",
    "context are 16 generated tokens. Memory is that of all processes of a side, at the end of the case; vLLM takes",
    "2 GiB for its KV cache when it starts.",
]
OURS = "parallax"
COMPARED = {
    "prompt_tokens_per_s": "tokens of the prompt per second",
    "ttft_ms": "time to the first token",
    "itl_ms": "time between tokens",
    "memory_bytes": "memory",
}
"""The figures that are compared, in words."""
FORMS = ("float32", "bfloat16", "int8")


def read_long() -> dict[str, Any]:
    """Return the parts of the report, none if it was not recorded yet."""
    found: dict[str, Any] = json.loads(REPORT.read_text(encoding="utf-8"))["parts"] if REPORT.exists() else {}
    return found


def write_long(parts: Mapping[str, Any]) -> list[str]:
    """Return the lines of the tables, none without a report."""
    sides = {name: part for name, part in parts.items() if name != ATTENTION}
    lines = ["", "### Long contexts", "", *ABOUT, ""] if parts else []
    if sides:
        lines += [
            "| Context | Requests | | Prompt tokens/s | First token, s | Between tokens, ms | Memory, GB | Load |"
        ]
        lines += ["|---" * 8 + "|", *map(write_side, *zip(*sorted(sides.items(), key=order_side), strict=True)), ""]
    return [*lines, *(write_attention(parts[ATTENTION]) if ATTENTION in parts else [])]


def list_ratios(parts: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
    """Yield how many times as good as a rival's each figure of ours is, in the same case and format, and its title."""
    for name, theirs in parts.items():
        rival, _, case = name.partition(": ")
        ours = parts.get(f"{OURS}: {case}")
        if ours is None or rival.startswith(OURS):
            continue
        tokens, requests = read_case(name)
        title = f"{rival}, context of {tokens:,} tokens, {requests} request{'s' if requests > 1 else ''}"
        for figure, words in COMPARED.items():
            if figure in theirs:
                ratio = theirs[figure] / ours[figure]
                yield (1 / ratio if figure.endswith("per_s") else ratio), f"{title}: {words}"


def order_side(item: tuple[str, Mapping[str, Any]]) -> tuple[int, int]:
    """Return the place of a part: by the number of requests, then by the context; sides stay in their order."""
    tokens, requests = read_case(item[0])
    return requests, tokens


def read_case(name: str) -> tuple[int, int]:
    """Return the tokens and the requests of a part such as ``vLLM: 1024 tokens, 8``."""
    tokens, _, requests = name.rpartition(": ")[2].partition(" tokens, ")
    return int(tokens), int(requests)


def write_side(name: str, part: Mapping[str, Any]) -> str:
    """Return the row of a side in one case."""
    tokens, requests = read_case(name)
    speed = f"{part['prompt_tokens_per_s']:.0f}" if "prompt_tokens_per_s" in part else ""
    times = [f"{part['ttft_ms'] / 1000:.2f}", f"{part['itl_ms']:.1f}", f"{part['memory_bytes'] / 1e9:.2f}"]
    cells = [f"{tokens:,}", str(requests), name.rpartition(": ")[0], speed, *times, str(part["load"])]
    return f"| {' | '.join(cells)} |"


def write_attention(part: Mapping[str, Any]) -> list[str]:
    """Return the table of attention by itself, by the dtype of keys and values."""
    cases, read = part["cases"], part["cases"]["reading memory"]["gigabytes_per_s"]
    titles = dict.fromkeys(name.rpartition(", ")[0] for name in cases if ", " in name)
    rate = f"all threads read {read:.1f} GB/s from memory, at load {part['load']}"
    lines = [
        f"Attention of one layer by itself, in milliseconds; {rate}:",
        "",
        f"| | {' | '.join(FORMS)} |",
        "|---" * (len(FORMS) + 1) + "|",
    ]
    for title in titles:
        found = [cases[f"{title}, {form}"] for form in FORMS]
        figure = "gflops" if title.startswith("chunk") else "gigabytes_per_s"
        unit = "GFLOP/s" if figure == "gflops" else "GB/s"
        cells = [f"{each['ms']:.2f} ({each[figure]:.0f} {unit})" for each in found]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return [*lines, ""]
