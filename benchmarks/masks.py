"""What do masks cost those who ask for them, and what does an ambiguous grammar cost everybody else?

    python -m benchmarks.masks smollm2-135m --base OTHER_CHECKOUT --out benchmarks/results/masks.json

Starts `parallax serve` from this checkout, and from another one if it is given, and asks both in turns. ``streams`` are
answers under a JSON schema, 1, 8 and 32 at a time: tokens per second and the 99th percentile of the gaps between two
pieces of text. ``attacks`` are one plain stream, and one under a schema, alone and beside others: an answer that is
asked for again and again, of 4 or 128 choices, plain or under an ambiguous grammar, whose masks take longer with every
token. Run it on a quiet machine: the report records the load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.record import describe_run, read_report, write_report
from benchmarks.schemas import LONG
from benchmarks.serving import serving
from parallax_bench.client import Target, send_requests
from parallax_bench.request import BenchRequest, BenchResult
from parallax_bench.summary import percentile

AT_ONCE = (1, 8, 32)
PROMPT = "Describe a thing."
ATTACK_TOKENS = 60
"""The tokens of each answer that an attacker asks for."""
AMBIGUOUS = 'start: a\na: a a | "x" | "y" | " "'
SCHEMA: dict[str, Any] = {"structured_outputs": {"json": LONG}}
HOSTILE: dict[str, Any] = {"structured_outputs": {"grammar": AMBIGUOUS}, "min_tokens": ATTACK_TOKENS}
ATTACKS: dict[str, dict[str, Any] | None] = {
    "alone": None,
    "beside 4 plain": {"n": 4, "ignore_eos": True},
    "beside 4 ambiguous": {"n": 4, **HOSTILE},
    "beside 128 plain": {"n": 128, "ignore_eos": True},
    "beside 128 ambiguous": {"n": 128, **HOSTILE},
}
"""What an attacker asks for, again and again."""
VICTIMS: dict[str, dict[str, Any]] = {"plain": {"ignore_eos": True}, "schema": SCHEMA}
LEAST_S = 0.001
"""Seconds between two requests of an attacker that is refused at once."""

Figures = dict[str, float]


@dataclass(slots=True)
class Side:
    """A server of one checkout, and its figures by measurement, one for each turn."""

    target: Target
    figures: dict[str, list[Figures]] = field(default_factory=dict)

    def note(self, name: str, results: Sequence[BenchResult]) -> None:
        """Add the figures of some streams."""
        errors = [result.error for result in results if result.error]
        if errors:
            raise SystemExit(f"{name}: {errors[0]}")
        gaps = sorted(gap for result in results for gap in result.gaps)
        span = max(result.last or 0.0 for result in results) - min(result.sent for result in results)
        figures = {
            "tokens_per_s": sum(result.output_tokens for result in results) / span,
            "p50_ms": 1000 * percentile(gaps, 50),
            "p99_ms": 1000 * percentile(gaps, 99),
            "most_ms": 1000 * gaps[-1],
        }
        self.figures.setdefault(name, []).append(figures)
        print(name, {key: round(value, 1) for key, value in figures.items()}, flush=True)


@contextlib.contextmanager
def serve(checkout: Path, model: str, *options: str) -> Iterator[Target]:
    """Run ``parallax serve`` of a checkout."""
    program = checkout / ".venv-dev" / "bin" / "parallax"
    with serving(program, model, "--backend", "torch", *options) as (url, model_id):
        yield Target(url=url.removesuffix("/v1"), model=model_id, ignores_eos=False)


async def ask(target: Target, fields: Mapping[str, Any], tokens: int, at_once: int = 1) -> list[BenchResult]:
    """Ask for streams at the same time, each with a seed of its own."""
    bodies = [
        {"prompt": f"{PROMPT} ({number})", "max_tokens": tokens, "temperature": 1, "seed": number, **fields}
        for number in range(at_once)
    ]
    requests = [BenchRequest(route="/v1/completions", body=body) for body in bodies]
    return await send_requests(target, requests, [0.0] * at_once, 0, lambda _: None)


async def attack(target: Target, fields: Mapping[str, Any], ends: dict[str, int]) -> None:
    """Ask for an answer again and again, and count how the requests end."""
    while True:
        [result] = await ask(target, fields, ATTACK_TOKENS)
        end = result.error[:100] or "whole"
        ends[end] = ends.get(end, 0) + 1
        await asyncio.sleep(LEAST_S)


async def measure_streams(sides: Sequence[Side], tokens: int) -> None:
    """Measure answers under a schema, on one side right after the other."""
    for at_once in AT_ONCE:
        for side in sides:
            side.note(f"{at_once} streams", await ask(side.target, SCHEMA, tokens, at_once))


async def measure_attacks(side: Side, tokens: int, victim: str) -> None:
    """Measure one stream alone and beside each of `ATTACKS`."""
    for name, fields in ATTACKS.items():
        ends: dict[str, int] = {}
        attacking = None if fields is None else asyncio.create_task(attack(side.target, fields, ends))
        await asyncio.sleep(2.0 if attacking else 0.0)
        side.note(f"{victim} {name}", await ask(side.target, VICTIMS[victim], tokens))
        if attacking is not None:
            attacking.cancel()
            print("   attacks:", ends, flush=True)
            await asyncio.sleep(2.0)


def summarize(sides: Mapping[str, Side]) -> dict[str, Any]:
    """Return the median of each figure, and of the ratio of this checkout's to the other's of the same turn."""
    found: dict[str, Any] = {
        name: {part: _find_medians(turns) for part, turns in side.figures.items()} for name, side in sides.items()
    }
    if len(sides) > 1:
        ours, base = sides["ours"].figures, sides["base"].figures
        found["ours / base"] = {part: _compare(ours[part], base[part]) for part in ours}
    return found


def _compare(ours: Sequence[Figures], base: Sequence[Figures]) -> Figures:
    ratios = [{key: mine[key] / other[key] for key in mine} for mine, other in zip(ours, base, strict=True)]
    return _find_medians(ratios)


def _find_medians(turns: Sequence[Figures]) -> Figures:
    return {key: round(median(turn[key] for turn in turns), 3) for key in turns[0]}


async def run_part(name: str, sides: Mapping[str, Side], given: argparse.Namespace) -> None:
    """Run one part on all sides in turns."""
    for side in sides.values():  # compile what is compiled once
        await ask(side.target, SCHEMA, 8)
        await ask(side.target, VICTIMS["plain"], 8)
    for turn in range(given.turns):
        order = [sides[which] for which in sorted(sides, reverse=bool(turn % 2))]
        print(f"-- turn {turn}, {', '.join(sorted(sides, reverse=bool(turn % 2)))}", flush=True)
        if name == "streams":
            await measure_streams(order, given.tokens)
            continue
        for side in order:
            await measure_attacks(side, given.tokens, name.split()[1])


def main(args: Sequence[str] | None = None) -> None:
    """Run the parts that were asked for."""
    names = ("streams", *(f"attacks {victim}" for victim in VICTIMS))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--base", type=Path, help="another checkout, with its .venv-dev")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    given = parser.parse_args(args)
    report = read_report(given.out)
    checkouts = {"ours": Path(__file__).parents[1], **({"base": given.base} if given.base else {})}
    for name in given.only:
        command = ["benchmarks.masks", given.model, "--base BASE", "--turns", str(given.turns), f"--only '{name}'"]
        with contextlib.ExitStack() as stack:
            sides = {which: Side(stack.enter_context(serve(path, given.model))) for which, path in checkouts.items()}
            run = describe_run(command, ["llguidance", "torch"])
            asyncio.run(run_part(name, sides, given))
        report[name] = {"run": run, **summarize(sides)}
        write_report(given.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
