"""Makes requests: of random text, of text with shared prefixes, or from a file."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parallax_bench.request import BenchRequest
from parallax_core.api import ParallaxError

WORDS = tuple(
    word
    for line in (
        "time year people way day man thing woman life child world school state family student group country",
        "problem hand part place case week company system program question work government number night point",
        "home water room mother area money story fact month lot right study book eye job word business issue",
        "side kind head house service friend father power hour game line end member law car city community",
        "name president team minute idea kid body information back parent face others level office door",
        "health person art war history party result change morning reason research girl guy moment air",
        "teacher force education",
    )
    for word in line.split()
)
"""Each is about one token in nearly every tokenizer; the server reports the exact number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The lengths of prompts, in words, and of answers, in tokens."""

    input_len: int = 128
    output_len: int = 128
    spread: float = 0.0
    """The share, 0 to 1, by which lengths vary: uniform in length * (1 - spread) to length * (1 + spread)."""
    prefix_len: int = 0
    """Words of the shared prefix, in addition to ``input_len``."""
    groups: int = 1
    """The number of different prefixes."""


def make_random(num: int, sizes: Sizes, seed: int) -> list[BenchRequest]:
    """Return requests of random words, each with the prefix of its group, if any."""
    chance = random.Random(seed)  # noqa: S311 -- to be repeatable, not secret
    prefixes = [_write(chance, sizes.prefix_len) for _ in range(sizes.groups)]
    return [
        _complete(
            f"{prefixes[index % sizes.groups]} {_write(chance, _vary(chance, sizes.input_len, sizes.spread))}".strip(),
            _vary(chance, sizes.output_len, sizes.spread),
        )
        for index in range(num)
    ]


def read_file(path: Path, num: int, output_len: int) -> list[BenchRequest]:
    """Return the requests of a file, repeated from the first if there are fewer than ``num``.

    Each line is JSON with ``prompt`` or ``messages``, and optionally other fields of a request.

    Raises:
        ParallaxError: naming the malformed line.
    """
    requests = []
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
            if line.strip():
                requests.append(_read_line(line, output_len, f"line {number} of {path}"))
    except (OSError, UnicodeDecodeError) as error:
        raise ParallaxError(
            f"the dataset cannot be read: {error}", "give --dataset file:PATH a readable file"
        ) from error
    if not requests:
        raise ParallaxError(f"there is no request in {path}", "write one JSON object per line")
    return _repeat(requests, num)


def _read_line(line: str, output_len: int, where: str) -> BenchRequest:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise ParallaxError(f"{where} is not JSON: {error}", "write one JSON object per line") from error
    if not isinstance(body, dict) or ("prompt" in body) == ("messages" in body):
        raise ParallaxError(f"{where} needs one of 'prompt' and 'messages'", "give each line exactly one of them")
    route = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    return BenchRequest(route=route, body={"max_tokens": output_len, **body})


def _repeat(requests: Sequence[BenchRequest], num: int) -> list[BenchRequest]:
    return [requests[index % len(requests)] for index in range(num)]


def _complete(prompt: str, max_tokens: int) -> BenchRequest:
    return BenchRequest(route="/v1/completions", body={"prompt": prompt, "max_tokens": max_tokens})


def _write(chance: random.Random, num: int) -> str:
    return " ".join(chance.choices(WORDS, k=num))


def _vary(chance: random.Random, length: int, spread: float) -> int:
    low, high = round(length * (1 - spread)), round(length * (1 + spread))
    return max(1, chance.randint(low, high))
