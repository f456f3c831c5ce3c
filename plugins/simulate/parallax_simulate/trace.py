"""Makes and reads the requests of a simulation: arrival times, and lengths of prompts and answers."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from random import Random
from typing import Any

from parallax_core.api.cli import UsageError

MOST_TOKENS = 10_000_000
"""The most tokens of a prompt, and of an answer."""
LENGTH_HINT = "write 512, a range such as 64-1024, or exp:512 for exponential lengths of that mean"
TRACE_HINT = (
    'give each line "at" in seconds, "prompt" and "output" in tokens; '
    "or CSV with TIMESTAMP,ContextTokens,GeneratedTokens"
)

Length = Callable[[Random], int]
"""Draws a number of tokens, at least 1."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a simulation."""

    at: float
    """Seconds from the beginning."""
    prompt_tokens: int
    output_tokens: int
    group: int = 0
    """Requests of one group begin with the same ``shared_tokens`` tokens."""
    shared_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceOptions:
    """The arrivals to make up."""

    rate: float
    """Requests per second."""
    prompt: Length
    output: Length
    burst: int = 1
    """Requests that arrive at the same moment; such bursts are a Poisson process."""
    shared_tokens: int = 0
    """The tokens that the prompts of a group have in common, at their beginning."""
    groups: int = 1
    seed: int = 0


def make_trace(options: TraceOptions, number: int) -> Iterator[Arrival]:
    """Yield ``number`` arrivals of a Poisson process, or of bursts that are one."""
    random, at = Random(options.seed), 0.0  # noqa: S311 -- the same trace for the same seed is the point
    for rank in range(number):
        if rank % options.burst == 0:
            at += random.expovariate(options.rate / options.burst)
        prompt, output = options.prompt(random), options.output(random)
        group = random.randrange(options.groups)
        yield Arrival(at, prompt, output, group, min(options.shared_tokens, prompt - 1))


def parse_length(text: str, option: str) -> Length:
    """Return the distribution of lengths that ``text`` describes: a number, a range, or ``exp:MEAN``.

    Raises:
        UsageError: if it is none of these; the message names ``option``.
    """
    if found := re.fullmatch(r"(\d{1,8})(?:-(\d{1,8}))?", text):
        low, high = int(found[1]), int(found[2] or found[1])
        if 1 <= low <= high <= MOST_TOKENS:
            return lambda random: random.randint(low, high)
    elif (found := re.fullmatch(r"exp:(\d{1,8})", text)) and 1 <= (mean := int(found[1])) <= MOST_TOKENS:
        return lambda random: min(1 + int(random.expovariate(1 / mean)), MOST_TOKENS)
    message = f"{option} is {text!r}, which is no length"
    raise UsageError(message, LENGTH_HINT)


def read_trace(lines: Iterable[str], name: str) -> list[Arrival]:
    """Return the arrivals of a file, in order of time: a JSON object a line, or the CSV of Azure's public traces.

    Args:
        lines: of the file.
        name: of the file, for messages.

    Raises:
        UsageError: if a line cannot be read; the message has its number.
    """
    given = [line for line in lines if line.strip()]
    is_csv = bool(given) and not given[0].lstrip().startswith("{")
    found: list[Arrival] = []
    number = 1
    try:
        rows: Iterable[Any] = csv.DictReader(given) if is_csv else map(json.loads, given)
        for number, row in enumerate(rows, 1 + is_csv):  # noqa: B007 -- the message below names it
            found.append(_read_azure(row) if is_csv else _read_line(row))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, csv.Error) as error:
        missing = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        message = f"line {number} of {name}, or the one after it, is not a request: {missing}"
        raise UsageError(message, TRACE_HINT) from error
    if not found:
        message = f"{name} has no requests"
        raise UsageError(message, TRACE_HINT)
    begin = min(arrival.at for arrival in found) if is_csv else 0.0
    moved = (Arrival(each.at - begin, each.prompt_tokens, each.output_tokens) for each in found) if is_csv else found
    return sorted(moved, key=lambda arrival: arrival.at)


def _read_line(row: Any) -> Arrival:  # noqa: ANN401 -- any JSON
    if not isinstance(row, Mapping):
        message = f"{row!r} is no object"
        raise TypeError(message)
    if unknown := sorted(set(row) - {"at", "prompt", "output", "group", "shared"}):
        message = f"unknown field {unknown[0]!r}"
        raise ValueError(message)
    prompt = _read_tokens(row["prompt"], "prompt")
    shared = row.get("shared", 0)
    if not isinstance(shared, int) or not 0 <= shared < prompt:
        message = f"shared is {shared!r}, and must be less than the prompt"
        raise ValueError(message)
    at = row["at"]
    if not isinstance(at, int | float) or not isfinite(at) or at < 0:
        message = f"at is {at!r}"
        raise ValueError(message)
    return Arrival(float(at), prompt, _read_tokens(row["output"], "output"), int(row.get("group", 0)), shared)


def _read_azure(row: Mapping[str, str]) -> Arrival:
    at = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26]).timestamp()
    prompt = _read_tokens(int(row["ContextTokens"]), "ContextTokens")
    return Arrival(at, prompt, _read_tokens(max(1, int(row["GeneratedTokens"])), "GeneratedTokens"))


def _read_tokens(value: object, name: str) -> int:
    if not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
        message = f"{name} is {value!r}, and must be a number of tokens"
        raise ValueError(message)
    return value
