"""Generates the tables on a CUDA device of the performance page, from ``benchmarks/results/cuda.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REPORT = Path(__file__).parents[2] / "benchmarks/results/cuda.json"
ABOUT = [
    "The model has random weights in bfloat16 and the shape of Llama 3.1 8B; the figures are those of the stage by",
    "itself, without HTTP, one side after the other. A decode step draws a token for each request, behind 1,024 tokens",
    "each. Its bound is the time to read the weights, keys and values once, and that of a prompt the time of its",
    "products, both at the rates that the device reached in the same run.",
]
TITLES = {
    "parallax": "Parallax",
    "parallax, no graphs": "without graphs",
    "parallax, no kernels": "without our kernels",
    "transformers": "transformers",
}
"""The sides, in the order of the columns."""
CASES = {"decode_ms": "decode step, requests: ", "prompt_ms": "prompt, tokens: "}


def read_cuda() -> dict[str, Any]:
    """Return the report."""
    found: dict[str, Any] = json.loads(REPORT.read_text(encoding="utf-8"))
    return found


def list_ratios(report: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
    """Yield the time of transformers as a multiple of ours in each case, and its title."""
    for what, title in CASES.items():
        for size, ratio in report["ratios"][what].items():
            yield ratio, f"transformers on {report['device']['name']}, {title}{int(size):,}"


def write_cuda(report: Mapping[str, Any]) -> list[str]:
    """Return the lines of the table."""
    device, versions = report["device"], report["versions"]
    about = f"On an {device['name']}, which reached {device['tb_per_s']} TB/s and {device['tflop_per_s']:.0f} TFLOP/s"
    programs = f"torch {versions['torch']} and transformers {versions['transformers']}"
    head = f"| ms | {' | '.join(TITLES.values())} | Bound | Bound / time | Ratio to transformers |"
    lines = ["", "### A CUDA device", "", *ABOUT, "", f"{about}, with {programs}.", "", head]
    return [*lines, "|---" * (len(TITLES) + 4) + "|", *write_cases(report), *write_host(report)]


def write_host(report: Mapping[str, Any]) -> list[str]:
    """Return the lines on the time that the device waits, if it was measured."""
    if "first_token_s" not in report:
        return []
    shares = [f"{share:.0%} with {rows}" for rows, share in report["sides"]["parallax"]["idle"].items()]
    return [
        "",
        f"While a profiler watched, the device had nothing to do in {', '.join(shares)} requests of the time of decode",
        f"steps: the host prepares them. A new process drew its first token after {report['first_token_s']} s.",
    ]


def write_cases(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the row of each case."""
    for what, title in CASES.items():
        for size in report["sides"]["parallax"][what]:
            times = [f"{report['sides'][side][what][size]:.1f}" for side in TITLES]
            ratio = report["ratios"][what][size]
            rest = [f"{report[name][what][size]:.2f}" for name in ("bound", "of_bound")]
            cells = [f"{title}{int(size):,}", *times, *rest, f"**{ratio:.2f}**" if ratio < 1 else f"{ratio:.2f}"]
            yield f"| {' | '.join(cells)} |"
