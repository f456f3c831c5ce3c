"""Compares the prefix index with a dict of tuples, the obvious implementation, at a million cached tokens.

    python -m benchmarks.prefix --out benchmarks/results/prefix.json

The dict holds every prefix of every sequence, at each multiple of the page size, as a tuple of tokens; the longest one
found wins. Both hold the same sequences (families that share a prefix) and look up the same prompts, in one run, in
turns; a call includes the time to make a key of the tokens. Ratios above 1 mean that the index is faster; it also finds
prefixes that end within a page.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parallax_core.api import SeqId
from parallax_core.engine.prefix import PrefixIndex, make_key

PAGE = 16
SHARED, OWN = 800, 200
"""Tokens that a family shares, and tokens that each member has alone."""
FAMILY = 10
VOCAB = 50_000
NUM_PROMPTS = 200

Tokens = tuple[int, ...]


class DictOfTuples:
    """The obvious implementation of a prefix index."""

    def __init__(self) -> None:
        self._seqs: dict[Tokens, SeqId] = {}

    def insert(self, tokens: Tokens, seq: SeqId) -> None:
        """Store every prefix of whole pages."""
        for end in range(PAGE, len(tokens) + 1, PAGE):
            self._seqs[tokens[:end]] = seq

    def match(self, tokens: Tokens) -> int:
        """Return the length of the longest stored prefix."""
        found = 0
        for end in range(PAGE, len(tokens) + 1, PAGE):
            if tokens[:end] not in self._seqs:
                break
            found = end
        return found


def make_sequences(total: int, source: random.Random) -> list[Tokens]:
    """Return sequences with ``total`` tokens altogether."""

    def draw(count: int) -> Tokens:
        return tuple(source.randrange(VOCAB) for _ in range(count))

    families = [draw(SHARED) for _ in range(total // (SHARED + OWN) // FAMILY)]
    return [family + draw(OWN) for family in families for _ in range(FAMILY)]


def time_calls(call: Callable[[Any], object], items: Sequence[Any]) -> float:
    """Return the median time of a call in microseconds."""
    times = []
    for item in items:
        begun = time.perf_counter()
        call(item)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def compare(total: int) -> dict[str, Any]:
    """Fill both, look up the prompts in both, and return the medians and ratios."""
    source = random.Random(1)
    sequences = make_sequences(total, source)
    prompts = [source.choice(sequences)[: SHARED + OWN // 2] + (VOCAB,) * OWN for _ in range(NUM_PROMPTS)]
    index, other = PrefixIndex(), DictOfTuples()
    numbered = [(tokens, SeqId(number)) for number, tokens in enumerate(sequences)]
    ours, theirs = {}, {}
    ours["insert"] = time_calls(lambda item: index.insert("", make_key(item[0]), item[1]), numbered)
    theirs["insert"] = time_calls(lambda item: other.insert(*item), numbered)
    ours["match"] = time_calls(lambda prompt: next(index.match("", make_key(prompt))), prompts)
    theirs["match"] = time_calls(other.match, prompts)
    assert all(next(index.match("", make_key(prompt))).length >= other.match(prompt) for prompt in prompts)
    return {
        "cached_tokens": sum(map(len, sequences)),
        "index_us": {name: round(value, 1) for name, value in ours.items()},
        "dict_of_tuples_us": {name: round(value, 1) for name, value in theirs.items()},
        "ratio": {name: round(theirs[name] / ours[name], 1) for name in ours},
    }


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    found = {
        **compare(options.tokens),
        "commit": commit.stdout.strip(),
        "command": f"python -m benchmarks.prefix --tokens {options.tokens}",
        "machine": {"system": platform.platform(), "python": platform.python_version()},
    }
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
