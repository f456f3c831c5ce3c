"""Compares the greedy tokens of two servers, and the margin of the best token where they first differ."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.parity import PROMPTS

TOKENS = 64
ENDS = ("", "<|im_end|>", "<|endoftext|>")
"""The texts by which servers show an end-of-text token."""


@dataclass(frozen=True)
class Answer:
    """The greedy tokens after a prompt, as text, and the two best at each position with their log-probabilities."""

    tokens: list[str]
    best: list[dict[str, float]]

    def read_margin(self, place: int) -> float:
        """Return the margin in log-probability between the best two tokens at a position."""
        first, second = sorted(self.best[place].values(), reverse=True)[:2]
        return first - second


def ask_greedily(url: str, model: str, prompt: Sequence[int]) -> Answer:
    """Request greedy tokens over HTTP; a token that is not a whole character is shown as "?"."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": TOKENS, "temperature": 0, "logprobs": 2}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        found = json.load(response)["choices"][0]["logprobs"]
    tokens = list(itertools.takewhile(lambda token: token not in ENDS, found["tokens"]))
    return Answer(
        ["?" if "\ufffd" in token or token.startswith("bytes:") else token for token in tokens], found["top_logprobs"]
    )


def find_margin(ours: Answer, theirs: Answer) -> float | None:
    """Return the smaller of the two margins where the answers first differ, or None if they are equal."""
    pairs = itertools.zip_longest(ours.tokens, theirs.tokens)
    place = next((at for at, (left, right) in enumerate(pairs) if left != right), None)
    if place is None:
        return None
    return min((side.read_margin(place) for side in (ours, theirs) if place < len(side.best)), default=None)


def compare_tokens(sides: tuple[str, str], model: Path) -> dict[str, Any]:
    """Compare the answers of two servers, given by their addresses, to each prompt."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    prompts = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in PROMPTS]
    margins = [find_margin(*(ask_greedily(url, model.name, prompt) for url in sides)) for prompt in prompts]
    return {
        "prompts": len(prompts),
        "tokens": TOKENS,
        "same": margins.count(None),
        "margins_of_others": [round(margin, 6) for margin in margins if margin is not None],
    }
