"""Makes requests of random text, and of text with shared prefixes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from parallax_bench.request import BenchRequest

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
    prefixes = [write_words(chance, sizes.prefix_len) for _ in range(sizes.groups)]
    requests = []
    for index in range(num):
        words = write_words(chance, _vary(chance, sizes.input_len, sizes.spread))
        prompt = f"{prefixes[index % sizes.groups]} {words}".strip()
        requests.append(complete(prompt, _vary(chance, sizes.output_len, sizes.spread)))
    return requests


def complete(prompt: str, max_tokens: int) -> BenchRequest:
    """Return a request to continue a prompt."""
    return BenchRequest(route="/v1/completions", body={"prompt": prompt, "max_tokens": max_tokens})


def write_words(chance: random.Random, num: int) -> str:
    """Return ``num`` random words."""
    return " ".join(chance.choices(WORDS, k=num))


def _vary(chance: random.Random, length: int, spread: float) -> int:
    low, high = round(length * (1 - spread)), round(length * (1 + spread))
    return max(1, chance.randint(low, high))
