"""Continues a text, for ``parallax chat --raw``."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from parallax_client.client import Client
from parallax_core.api.cli import UsageError

MAX_TOKENS = 128
"""The most tokens to generate if the user does not say."""


def continue_text(client: Client, prompt: str | None, options: Mapping[str, object]) -> None:
    """Print the continuation of ``prompt``, or of standard input, as it comes.

    Raises:
        UsageError: if there is no text.
        ParallaxError: as `Client` does.
    """
    text = _read_prompt() if prompt is None else prompt
    body = {"model": client.model(), "prompt": text, "max_tokens": MAX_TOKENS, **options}
    for choice in client.stream("/completions", body):
        print(choice["text"], end="", flush=True)
    if sys.stdout.isatty():
        print()


def _read_prompt() -> str:
    """Return the text of standard input as it is; invalid UTF-8 becomes replacement characters."""
    text = sys.stdin.buffer.read().decode(errors="replace") if sys.stdin is not None else ""
    if not text:
        message = "there is nothing to continue: standard input is empty"
        raise UsageError(message, "give a text, or send one through a pipe")
    return text
