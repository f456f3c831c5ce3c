"""Makes requests from traces: send times, lengths of prompts and answers, shared prefixes.

Read are tables such as Azure's and BurstGPT's, and lines of JSON such as Mooncake's.
"""

from __future__ import annotations

import csv
import math
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parallax_bench.dataset import complete, write_words
from parallax_bench.entries import list_lines, parse, read_text
from parallax_bench.request import BenchRequest
from parallax_core.api import ParallaxError

TABLE = "a trace has a line TIMESTAMP,ContextTokens,GeneratedTokens and one for each request, or is lines of JSON"
BLOCK = 512
"""The tokens of a block of Mooncake's."""
COLUMNS = {
    "time": ("timestamp",),
    "tokens of the prompt": ("contexttokens", "requesttokens", "inputlength"),
    "tokens of the answer": ("generatedtokens", "responsetokens", "outputlength"),
}
"""The titles of columns, in small letters and without spaces and underscores, by what they have."""
NUMBER = re.compile(r"-?\d{1,15}(\.\d*)?", re.ASCII)
MOST_TOKENS = 10_000_000
"""More per prompt than any model holds: a mistake."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """A request of a trace."""

    at: float
    """When it was sent, in seconds from any moment."""
    input_len: int
    """Tokens of its prompt."""
    output_len: int
    """Tokens of its answer."""
    blocks: tuple[int, ...] = ()
    """The ids of the blocks of `BLOCK` tokens in its prompt, from its beginning; those of the same id are equal."""


def read_trace(path: Path, output_len: int | None, scale: float, seed: int) -> Iterator[BenchRequest]:
    """Yield the requests of a trace, in the order of their times, with prompts of random words.

    Args:
        path: a table with a line of titles, or lines of JSON.
        output_len: tokens of the answers; None: as many as the trace says.
        scale: a factor for the lengths of prompts and answers.
        seed: the seed of the words.

    Raises:
        ParallaxError: naming the malformed line.
    """
    text = read_text(path)
    read = _read_json if text.lstrip().startswith("{") else _read_table
    entries = sorted(read(text, path), key=lambda each: each.at)
    chance = random.Random(seed)  # noqa: S311 -- to be repeatable, not secret
    for each in entries:
        prompt = _write_prompt(each, scale, seed, chance)
        answer = output_len or _scale(each.output_len, scale)
        request = complete(prompt, answer)
        yield BenchRequest(route=request.route, body=request.body, at=each.at - entries[0].at)


def _write_prompt(entry: TraceEntry, scale: float, seed: int, chance: random.Random) -> str:
    """Return a prompt of a word per token, whose blocks of the same id are equal."""
    length, block = _scale(entry.input_len, scale), _scale(BLOCK, scale)
    words: list[str] = []
    for name in entry.blocks[: math.ceil(length / block)]:
        words += write_words(random.Random(f"{seed} {name}"), block).split()  # noqa: S311 -- as above
    if (rest := length - len(words)) > 0:
        words += write_words(chance, rest).split()
    return " ".join(words[:length])


def _scale(length: int, scale: float) -> int:
    return max(1, round(length * scale))


def _read_json(text: str, path: Path) -> Iterator[TraceEntry]:
    """Yield the requests of lines of JSON, whose times are in milliseconds."""
    for where, line in list_lines(text, path):
        entry = parse(line, where)
        if not isinstance(entry, dict):
            raise ParallaxError(f"{where} is not a JSON object", "write one JSON object per line")
        blocks = entry.get("hash_ids") or []
        if not (isinstance(blocks, list) and all(isinstance(each, int) for each in blocks)):
            raise ParallaxError(f"'hash_ids' in {where} is not a list of integers", "leave it out, or correct it")
        at, prompt = _read_number(entry, "timestamp", where) / 1000, _read_length(entry, "input_length", where)
        yield TraceEntry(at, prompt, _read_length(entry, "output_length", where), tuple(blocks))


def _read_table(text: str, path: Path) -> Iterator[TraceEntry]:
    """Yield the requests of a table with commas, whose times are in seconds or a date and a time."""
    lines = list(list_lines(text, path))
    try:
        rows = list(csv.reader(line for _, line in lines))
    except csv.Error as error:
        raise ParallaxError(f"{path} is no table with commas: {error}", TABLE) from error
    titles = [title.strip() for title in rows[0]] if rows else []
    time, prompt, answer = (_find_column(titles, name, path) for name in COLUMNS)
    for (where, _), row in zip(lines[1:], rows[1:], strict=False):
        if len(row) < len(titles):
            raise ParallaxError(f"{where} has {len(row)} of {len(titles)} columns", "complete it, or delete it")
        cells = dict(zip(titles, map(str.strip, row), strict=False))
        lengths = _read_length(cells, prompt, where), _read_length(cells, answer, where)
        yield TraceEntry(_read_time(cells[time], where), *lengths)


def _find_column(titles: list[str], wanted: str, path: Path) -> str:
    """Return the title of a column of `COLUMNS`."""
    for title in titles:
        if title.lower().replace(" ", "").replace("_", "") in COLUMNS[wanted]:
            return title
    raise ParallaxError(f"the first line of {path} has no column for the {wanted}", TABLE)


def _read_time(text: str, where: str) -> float:
    """Return a time in seconds; a date without a time zone is UTC."""
    if NUMBER.fullmatch(text):
        return float(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text[:40]!r} in {where} is not a time"
        raise ParallaxError(message, "write seconds, or 2023-11-16 18:15:46.68") from error
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _read_length(entry: Mapping[str, Any], name: str, where: str) -> int:
    length = _read_number(entry, name, where)
    if not 0 <= length <= MOST_TOKENS or length % 1:
        raise ParallaxError(f"{length:g} in {where} is no number of tokens", f"0 to {MOST_TOKENS}, whole")
    return int(length)


def _read_number(entry: Mapping[str, Any], name: str, where: str) -> float:
    value = entry.get(name)
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        message = f"{name!r} in {where} is {str(value)[:40]!r}, and not a finite number"
        raise ParallaxError(message, "correct it, or delete the line")
    return number
