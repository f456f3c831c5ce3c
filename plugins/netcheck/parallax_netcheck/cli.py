"""Check the network of this machine, and which ports to open."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from parallax_cluster.deploy.network import Asked, list_asked
from parallax_core.api.cli import Config, ConfigFile, PluginHost, new_app
from parallax_netcheck.judgement import NetworkReport, judge_network
from parallax_netcheck.survey import survey_network

WIDTH = 110

app = new_app()


@app.command()
def network(
    ask: Annotated[
        list[str] | None,
        typer.Option(
            help="Ask this server; may be repeated. By default those that this machine has joined.",
            metavar="CODE|ADDRESS|HOST:PORT",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002 -- a flag
    config: ConfigFile = None,
) -> None:
    """Check the network of this machine: its kind, its uses, and which ports to open.

    It asks servers from which address they see this machine: those of its clusters, or those that you name, and no
    others. Exits with 1 if no server is reached.
    """
    asked = list_asked(ask or [], PluginHost.discover(Config.load(config)))
    report = judge_network(survey_network(asked, os.environ))
    typer.echo(json.dumps(describe_json(report, asked), indent=2) if as_json else describe_text(report, asked))
    if report.kind in {"unreachable", "proxy"}:
        raise typer.Exit(1)


def describe_json(report: NetworkReport, asked: Sequence[Asked]) -> dict[str, object]:
    """Return the report as JSON."""
    return {"network": {**asdict(report), "asked": [_name(each) for each in asked]}}


def describe_text(report: NetworkReport, asked: Sequence[Asked]) -> str:
    """Return the report as lines."""
    seen = f", seen at {report.address}" if report.address else ""
    lines = [
        f"network: {report.summary}{seen}",
        f"asked: {', '.join(map(_name, asked)) if asked else 'no server, since this machine has joined none'}",
        *_list("works", report.works),
        *_list("to do", report.remedies),
        *_list("note", report.notes),
    ]
    return "\n".join(lines)


def _list(title: str, sentences: Sequence[str]) -> list[str]:
    return [
        textwrap.fill(each, WIDTH, initial_indent=f"{title}: ", subsequent_indent="    ", break_on_hyphens=False)
        for each in sentences
    ]


def _name(asked: Asked) -> str:
    host = f"[{asked.host}]" if ":" in asked.host else asked.host
    return f"{host}:{asked.port}"
