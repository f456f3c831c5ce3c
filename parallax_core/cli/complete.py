"""The command ``parallax complete``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from parallax_core.base.errors import UsageError
from parallax_core.cli.client import Client
from parallax_core.cli.command import new_app
from parallax_core.cli.server_url import UrlOption, find_url

app = new_app()


@app.command()
def complete(
    prompt: Annotated[str | None, typer.Argument(help="The text to continue; without it, standard input.")] = None,
    url: UrlOption = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 always takes the most probable token.", min=0, metavar="T")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="The most tokens to generate.", min=1, metavar="N")] = 128,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be repeated.", metavar="TEXT")
    ] = None,
) -> None:
    """Continue a text, for pipes: no chat template, and nothing but the continuation is printed.

    A key is taken from PARALLAX_API_KEY. Example: head -20 story.txt | parallax complete --max-tokens 200
    """
    client = Client(find_url(url))
    text = _read_prompt() if prompt is None else prompt
    body = {"model": client.model(), "prompt": text, "max_tokens": max_tokens, "stop": stop or None}
    if temperature is not None:
        body["temperature"] = temperature
    for piece in client.complete(body):
        print(piece, end="", flush=True)
    if sys.stdout.isatty():
        print()


def _read_prompt() -> str:
    """Return the text of standard input as it is; invalid UTF-8 becomes replacement characters."""
    text = sys.stdin.buffer.read().decode(errors="replace") if sys.stdin is not None else ""
    if not text:
        message = "there is nothing to continue: standard input is empty"
        raise UsageError(message, "give a text, or send one through a pipe")
    return text
