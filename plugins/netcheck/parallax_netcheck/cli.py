"""What ``parallax doctor --network`` says."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from parallax_core.cluster.network import NetworkReport, judge_network
from parallax_core.deploy.network import list_asked
from parallax_core.node.network.survey import Asked, survey_network
from parallax_core.plugins.host import PluginHost

WIDTH = 110


def check_network(plugins: PluginHost, words: Sequence[str], *, as_json: bool) -> bool:
    """Print what the network of this machine is; return whether servers are reached, as far as any were asked.

    Raises:
        UsageError: if ``words`` do not name servers.
        ParallaxError: if the transport of a code is not installed.
    """
    asked = list_asked(words, plugins)
    report = judge_network(survey_network(asked, os.environ))
    print(json.dumps(describe_json(report, asked), indent=2) if as_json else describe_text(report, asked))
    return report.kind not in {"unreachable", "proxy"}


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
