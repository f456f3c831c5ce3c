"""Prints the figures of ``parallax simulate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from parallax_core.api import Estimate
from parallax_core.api.cli import align
from parallax_simulate.report import PERCENTILES, SimulationReport

MOST_SHOWN = 5
"""The most refused requests to name."""
COLUMNS = ("mean", *(f"p{each}" for each in PERCENTILES))


def render_report(model: str, estimate: Estimate, report: SimulationReport) -> Iterator[str]:
    """Yield the lines of a report for a terminal; ``estimate`` is what is predicted of the placement."""
    yield f"{model} on {len(estimate.pipelines)} pipelines, simulated for {report.duration_s:.4g} s"
    yield ""
    yield from align(
        [
            ("SECONDS", *(name.upper() for name in COLUMNS)),
            _list_row("to the first token", report.ttft_s),
            _list_row("per token after it", report.token_s),
            _list_row("per request", report.request_s),
        ]
    )
    yield ""
    yield f"requests   {report.num_requests}: {report.num_finished} finished, {report.num_refused} refused"
    if report.refused:
        shown = (f"number {each['number']} at {each['at']:.4g} s" for each in report.refused[:MOST_SHOWN])
        rest = f" and {report.num_refused - MOST_SHOWN} more" if report.num_refused > MOST_SHOWN else ""
        yield f"refused    {', '.join(shown)}{rest}: too long for every pipeline, or too many waited already"
    if report.num_losses:
        yield f"losses     {report.num_losses}; {report.num_moved} requests went on on another pipeline"
    yield f"tokens     {report.tokens_per_s:.4g} per second; plan predicts {estimate.tokens_per_s:.4g} at full load"
    good, share = report.goodput_requests_per_s, report.goodput_share
    yield f"goodput    {good:.4g} requests per second within the limits, {share:.1%} of all"
    busy = report.utilisation
    bounds = f"the least {busy['least']:.0%}, the most {busy['most']:.0%}"
    yield f"busy       stages {busy['mean']:.0%} of the time: {bounds}"


def _list_row(title: str, values: Mapping[str, float]) -> tuple[str, ...]:
    return title, *(f"{values[name]:.3g}" if name in values else "-" for name in COLUMNS)
