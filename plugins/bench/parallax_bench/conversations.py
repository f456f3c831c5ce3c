"""Makes requests from recorded conversations: in ShareGPT's form, or in OpenAI's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from parallax_bench.entries import list_entries, read_text
from parallax_bench.request import BenchRequest
from parallax_core.api import ParallaxError

Turn = dict[str, str]
"""A turn with ``role`` and ``content``."""
PLACES = ("messages", "conversations", "conversation")
"""Where an entry has its turns."""
FORMS = (("role", "content"), ("from", "value"))
"""The fields of a turn for the speaker and the text: OpenAI's, and ShareGPT's."""
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""ShareGPT's names of roles; others are OpenAI's."""
HINT = "give each entry 'messages' with 'role' and 'content', or 'conversations' with 'from' and 'value'"
CHARACTERS = 4
"""Of a text, per token, about."""


def read_first_turns(path: Path, output_len: int | None) -> Iterator[BenchRequest]:
    """Yield a request for the first question of each conversation, as long as its recorded answer.

    Args:
        path: a JSON list or lines of JSON.
        output_len: tokens of the answers; None: about as many as the recorded ones have.

    Raises:
        ParallaxError: naming the malformed entry.
    """
    for turns in read_conversations(path):
        yield from list(_ask(turns, output_len))[:1]


def read_all_turns(path: Path, output_len: int | None) -> Iterator[BenchRequest]:
    """Yield a request for each question, with all turns before it; see `read_first_turns`.

    What was recorded stands for earlier answers, so requests of a conversation share their beginnings.
    """
    for turns in read_conversations(path):
        yield from _ask(turns, output_len)


def read_conversations(path: Path) -> Iterator[list[Turn]]:
    """Yield the turns of each conversation.

    Raises:
        ParallaxError: naming the malformed entry.
    """
    for where, entry in list_entries(read_text(path), path):
        turns = _find_turns(entry)
        if turns is None:
            raise ParallaxError(f"{where} has no conversation", HINT)
        yield [_read_turn(turn, f"turn {number} in {where}") for number, turn in enumerate(turns, 1)]


def _find_turns(entry: object) -> list[Any] | None:
    if isinstance(entry, list):
        return entry
    if not isinstance(entry, dict):
        return None
    return next((entry[name] for name in PLACES if isinstance(entry.get(name), list)), None)


def _read_turn(turn: object, where: str) -> Turn:
    if isinstance(turn, dict):
        for role, content in FORMS:
            if isinstance(turn.get(role), str) and isinstance(turn.get(content), str):
                return {"role": ROLES.get(turn[role], turn[role]), "content": turn[content]}
    raise ParallaxError(f"{where} has no text or no speaker", HINT)


def _ask(turns: list[Turn], output_len: int | None) -> Iterator[BenchRequest]:
    """Yield a request for each turn of a user that is answered."""
    for number, (turn, following) in enumerate(pairwise(turns), 1):
        if (turn["role"], following["role"]) == ("user", "assistant"):
            tokens = output_len or max(1, math.ceil(len(following["content"]) / CHARACTERS))
            yield BenchRequest(route="/v1/chat/completions", body={"messages": turns[:number], "max_tokens": tokens})
