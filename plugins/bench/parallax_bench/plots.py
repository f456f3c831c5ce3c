"""Plots the times of a run, as SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.figure import Figure, FigureBase

from parallax_bench.request import BenchResult


def draw_times(results: Sequence[BenchResult]) -> str:
    """Return a plot of the distribution of each time, to be part of a page: the share of requests below it."""
    figure = Figure(figsize=(10, 3), layout="constrained")
    _plot_times(figure, results)
    return _embed(figure)


def draw_course(results: Sequence[BenchResult]) -> str:
    """Return a plot of each request over time, to be part of a page: waiting for its first token, then answering."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    _plot_course(figure, results)
    return _embed(figure)


def draw_run(results: Sequence[BenchResult]) -> str:
    """Return both plots as one file."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(3, 4))
    _plot_times(parts[0, 0], results)
    _plot_course(parts[1, 0], results)
    return _write(figure)


def _plot_times(figure: FigureBase, results: Sequence[BenchResult]) -> None:
    for axes, name in zip(figure.subplots(1, 3), ("ttft", "tpot", "e2e"), strict=True):
        values = sorted(1000 * value for each in results if (value := getattr(each, name)) is not None)
        axes.step(values, [(index + 1) / len(values) for index in range(len(values))], where="post")
        axes.set(title=f"{name.upper()}, ms", ylim=(0, 1.02))
        axes.grid(visible=True, alpha=0.3)


def _plot_course(figure: FigureBase, results: Sequence[BenchResult]) -> None:
    axes = figure.subplots()
    for row, each in enumerate(sorted(results, key=lambda one: one.sent)):
        if each.first is not None and each.last is not None:
            axes.plot([each.sent, each.first], [row, row], color="tab:orange", linewidth=1)
            axes.plot([each.first, each.last], [row, row], color="tab:blue", linewidth=1)
    axes.set(title="Requests: to the first token (orange), then to the end (blue)", xlabel="seconds")


def _embed(figure: Figure) -> str:
    text = _write(figure)
    return text[text.index("<svg") :]


def _write(figure: Figure) -> str:
    sink = io.StringIO()
    figure.savefig(sink, format="svg", metadata={"Date": None})
    return sink.getvalue()
