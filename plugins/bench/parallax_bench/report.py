"""Reports a run: tables for people, JSON and HTML files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from parallax_bench.chart import draw_charts
from parallax_bench.request import BenchResult
from parallax_bench.summary import Spread, Summary

Settings = dict[str, Any]


def print_summary(summary: Summary) -> None:
    """Print the figures of a run as two tables."""
    console, fields = Console(), msgspec.structs.asdict(summary)
    figures = Table(show_header=False, box=None)
    for name, value in fields.items():
        if isinstance(value, int | float):
            figures.add_row(
                name.replace("_per_s", "/s").replace("_", " "), f"{value:.2f}" if value % 1 else f"{value:g}"
            )
    console.print(figures)
    times = Table("ms", *Spread.__struct_fields__, box=None)
    for name, value in fields.items():
        if isinstance(value, Spread):
            times.add_row(name.removesuffix("_ms"), *(f"{each:.1f}" for each in msgspec.structs.astuple(value)))
    console.print(times)
    for name, share in summary.within.items():
        console.print(f"{share:.1%} within the limit of {name}", highlight=False)
    for error, count in summary.errors.items():
        console.print(f"{count} x {error}", markup=False)


def print_charts(results: Sequence[BenchResult]) -> None:
    """Print the distributions of the times of a run."""
    console = Console()
    for line in draw_charts(results, console.encoding):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def write_json(path: Path, summary: Summary, results: Sequence[BenchResult], settings: Settings) -> None:
    """Write all measurements."""
    content = {"settings": settings, "summary": summary, "requests": results}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content, enc_hook=str)) + b"\n")


def write_chart(path: Path, results: Sequence[BenchResult]) -> None:
    """Write the plots of a run as SVG."""
    from parallax_bench.plots import draw_run

    path.write_text(draw_run(results), encoding="utf-8")


def write_page(path: Path, summary: Summary, results: Sequence[BenchResult], settings: Settings) -> None:
    """Write the report as HTML."""
    from parallax_bench.html_report import make_page

    path.write_text(make_page(summary, results, settings), encoding="utf-8")
