"""Generates the table of networks of the page on machines at home from ``benchmarks/results/nat-lab.json``.

``python -m tests.rules.networkpage`` writes it into the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/machines-at-home.md"
RESULT = ROOT / "benchmarks/results/nat-lab.json"

BEGIN, END = "<!-- made of the results: python -m tests.rules.networkpage -->", "<!-- end -->"
NETWORKS = ("open", "cone", "symmetric")
TRANSPORTS = ("zmq", "lattica")
PATHS = ("direct", "punched", "relayed")
"""How machines are linked, the best first."""


def describe_pair(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how the machines of a pair were linked, over a transport, by the order in which they joined."""
    if not rows:
        return "not measured"
    if failed := [row for row in rows if not row["serves"]]:
        return f"**no** ({failed[0].get('said', 'another answer')})" if len(failed) == len(rows) else "**at times**"
    found = sorted({row["path"] for row in rows}, key=PATHS.index)
    return " or ".join(found)


def write_table(report: Mapping[str, Any]) -> str:
    """Return the generated part of the page."""
    lines = ["| Networks of the two machines | `zmq` | `lattica` |", "|---|---|---|"]
    for kinds in combinations_with_replacement(NETWORKS, 2):
        found = [row for row in report["pairs"] if sorted(kinds) == sorted((row["first"], row["second"]))]
        cells = [describe_pair([row for row in found if row["transport"] == each]) for each in TRANSPORTS]
        lines.append(f"| {' and '.join(kinds)} | {' | '.join(cells)} |")
    return "\n".join([BEGIN, "", *lines, "", *write_sentences(report), "", END])


def write_sentences(report: Mapping[str, Any]) -> list[str]:
    """Return what the table was made of, and what was not as it should be."""
    served = ", ".join(f"{report['serve'][name]} over `{name}`" for name in TRANSPORTS)
    networks, machine = report["networks"], report["machine"]
    wrong = [kind for kind, each in networks.items() if not (each["is_as_named"] and each["is_named_rightly"])]
    where = f"on {machine['cores']} cores that all machines shared, at a load of {machine['load']:g}"
    tries = [
        f"{each['first']} and {each['second']} {each['punched']} of {each['tries']}" for each in report["punching"]
    ]
    return [
        f"Pairs that gave the answer of the whole model, in both orders of joining: {served}. From the moment",
        f"when both had loaded their layers, linking them took {report['worst_links_s']:g} s at most, {where}.",
        f"`parallax network` named {len(networks) - len(wrong)} of {len(networks)} kinds of networks rightly.",
        "",
        "What punching could do was measured without Parallax, by TCP connections that both machines open at the same",
        f"time (tries that got through): {', '.join(tries)}.",
    ]


def read_report() -> dict[str, Any]:
    """Return the report of the benchmark."""
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return found


def write_page() -> str:
    """Return the page with its table regenerated."""
    page = PAGE.read_text(encoding="utf-8")
    return page[: page.index(BEGIN)] + write_table(read_report()) + page[page.index(END) + len(END) :]


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
    print(PAGE)
