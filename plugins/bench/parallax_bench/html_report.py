"""Writes a report as one HTML file that contains its plots."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import msgspec

from parallax_bench.plots import draw_course, draw_times
from parallax_bench.request import BenchResult
from parallax_bench.summary import Spread, Summary

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
body { color: black; background: white }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .25rem .8rem; border-bottom: 1px solid silver }
td { text-align: right } td:first-child, th { text-align: left } svg { max-width: 100%; height: auto }
"""


def make_page(summary: Summary, results: Sequence[BenchResult], settings: dict[str, Any]) -> str:
    """Return the report of a run."""
    figures = {name: value for name, value in msgspec.structs.asdict(summary).items() if isinstance(value, int | float)}
    times = {name: value for name, value in msgspec.structs.asdict(summary).items() if isinstance(value, Spread)}
    heads = "".join(f"<th>{name}</th>" for name in ("", *Spread.__struct_fields__))
    rows = "".join(_row(name, *msgspec.structs.astuple(value)) for name, value in times.items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>parallax bench</title><style>{STYLE}</style>"
        f"<h1>parallax bench</h1><table>{''.join(_row(*item) for item in settings.items())}</table>"
        f"<h2>Figures</h2><table>{''.join(_row(*item) for item in figures.items())}</table>"
        f"<h2>Times in milliseconds</h2><table><tr>{heads}</tr>{rows}</table>"
        f"{draw_times(results)}{draw_course(results)}</html>\n"
    )


def _row(name: str, *values: object) -> str:
    cells = "".join(f"<td>{html.escape(_show(value))}</td>" for value in values)
    return f"<tr><td>{html.escape(name)}</td>{cells}</tr>"


def _show(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
