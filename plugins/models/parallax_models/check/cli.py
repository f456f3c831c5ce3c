"""Tell whether a model is supported, by its configuration alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import typer

from parallax_core.api import format_bytes
from parallax_core.api.cli import PluginHost, make_display, new_app, print_table
from parallax_core.api.deployment import Catalog
from parallax_core.api.node import divert_output
from parallax_models.check.fetch import find_folder
from parallax_models.check.report import ModelReport, check

app = new_app()


@app.command("check")
def check_command(
    model: Annotated[str, typer.Argument(help="A folder, a hub id such as org/name, or an alias.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell whether a model is supported, by its configuration alone.

    Of a model on the hub, this fetches the configuration and the headers of the weight files. The exit code is 1 if no
    backend of this machine runs the model, or its adapter counts other parameters than the checkpoint has.
    """
    host = PluginHost.prepare()
    with make_display() as display, divert_output():
        report = check(host, model, find_folder(Catalog(host), model, display))
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        show(report)
    raise typer.Exit(0 if report.is_supported else 1)


def show(report: ModelReport) -> None:
    """Print a report."""
    print_table(("", ""), list(list_rows(report)), header=False)
    print()
    backends = [
        (each.name, spell(each.whole), spell(each.stages), "; ".join(filter(None, (each.reason, each.hint))))
        for each in report.backends
    ]
    print_table(("BACKEND", "WHOLE", "STAGES", "WHY NOT"), backends, empty="no backend is installed")
    if report.problem:
        print(f"\nproblem: {report.problem}\nhint: {report.hint}")
    print(f"\n{report.model} is {'supported' if report.is_supported else 'not supported'} on this machine")


def list_rows(report: ModelReport) -> Iterator[tuple[str, str]]:
    """Yield what is known of the model."""
    yield "architecture", ", ".join(report.architectures) or "not stated"
    yield "family", f"{report.family} ({report.plugin})" if report.family else "none that an installed plugin knows"
    if report.parameters:
        yield "parameters", f"{shorten(report.parameters)}, of which a token meets {shorten(report.active_parameters)}"
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.kinds.items())
    yield "layers", f"{report.layers or 'not stated'}{f' ({kinds})' if kinds else ''}"
    if report.joined:
        yield "no cut at", "; ".join(f"{layer}: {reason}" for layer, reason in report.joined.items())
    for each in report.aside:
        size = f", {shorten(each.parameters)} parameters, {format_bytes(each.bytes)}" if each.bytes else ""
        yield "left aside", f"{each.tensors} tensors for {each.kind}{size}"


def spell(answer: bool | None) -> str:
    """Return an answer in a table."""
    return "?" if answer is None else "yes" if answer else "no"


def shorten(count: int) -> str:
    """Return a number of parameters in billions, or in millions."""
    return f"{count / 1e9:.1f} B" if count >= 10**9 else f"{count / 1e6:.1f} M"
