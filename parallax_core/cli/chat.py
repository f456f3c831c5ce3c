"""The command ``parallax chat``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.cli.client import DEFAULT_URL, Client
from parallax_core.cli.command import new_app

HELP = "Ctrl-C stops an answer, Ctrl-D ends the chat; /clear forgets the conversation"
COMMAND = re.compile("/[a-z]+")
"""Input that looks like a command, not like a path."""

app = new_app()


@app.command()
def chat(
    message: Annotated[
        str | None, typer.Argument(help="One question to ask; without it, a conversation begins.")
    ] = None,
    url: Annotated[str, typer.Option(help="The API of a running server.")] = DEFAULT_URL,
    system: Annotated[str, typer.Option(help="Instructions for the model, before the conversation.")] = "",
    temperature: Annotated[float | None, typer.Option(help="0 always takes the most probable token.", min=0)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens an answer may have.", min=1)] = None,
) -> None:
    """Talk to a running server in the terminal.

    Start one with `parallax serve`. A key is taken from PARALLAX_API_KEY. What comes through a pipe is one message.
    """
    client = Client(url)
    options = {"temperature": temperature, "max_tokens": max_tokens}
    talk = Conversation(client, client.model(), {name: value for name, value in options.items() if value is not None})
    if system:
        talk.begin(system)
    if message is None:
        message = _read_pipe()
    if message is not None:
        _print_answer(talk.ask(message))
        return
    with _typing_ahead():
        _converse(talk)


def _read_pipe() -> str | None:
    """Return the text of a pipe, or None on a terminal; invalid UTF-8 becomes replacement characters."""
    if sys.stdin is not None and sys.stdin.isatty():
        return None
    text = sys.stdin.buffer.read().decode(errors="replace").strip() if sys.stdin is not None else ""
    if not text:
        message = "there is nothing to ask: standard input is empty"
        raise UsageError(message, "give a message, or run it in a terminal")
    return text


@dataclass
class Conversation:
    """The turns so far; only complete answers are kept."""

    client: Client
    model: str
    options: dict[str, Any]
    turns: list[dict[str, str]] = field(default_factory=list)
    _num_fixed: int = 0

    def begin(self, system: str) -> None:
        """Set the system message, which `clear` keeps."""
        self.turns.append({"role": "system", "content": system})
        self._num_fixed = 1

    def clear(self) -> None:
        """Forget all turns except the system message."""
        del self.turns[self._num_fixed :]

    def ask(self, message: str) -> Iterator[str]:
        """Yield the answer to ``message``, and keep both turns once it is complete."""
        turns = [*self.turns, {"role": "user", "content": message}]
        parts = []
        for text in self.client.complete({"model": self.model, "messages": turns, **self.options}):
            parts.append(text)
            yield text
        self.turns = [*turns, {"role": "assistant", "content": "".join(parts)}]


def _converse(talk: Conversation) -> None:
    _enable_editing()
    print(f"{talk.model}: {HELP}", file=sys.stderr)
    while True:
        try:
            message = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if message == "/clear":
            talk.clear()
        elif COMMAND.fullmatch(message):
            print(f"there is no command {message}: {HELP}", file=sys.stderr)
        elif message:
            _answer(talk, message)


def _answer(talk: Conversation, message: str) -> None:
    try:
        _print_answer(talk.ask(message))
    except KeyboardInterrupt:
        print(" ...stopped")
    except ParallaxError as error:
        print(f"error: {error.message}", file=sys.stderr)


def _print_answer(answer: Iterator[str]) -> None:
    for text in answer:
        print(text, end="", flush=True)
    print()


@contextmanager
def _typing_ahead() -> Iterator[None]:
    """Keep text typed during an answer when Ctrl-C stops the answer; by default the terminal discards it."""
    try:
        import termios

        before = termios.tcgetattr(sys.stdin)
    except (ImportError, OSError, termios.error):
        yield
        return
    local = 3  # the index of the local modes in the result of tcgetattr
    changed = [*before]
    changed[local] |= termios.NOFLSH
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _enable_editing() -> None:
    """Give ``input`` arrow keys and a history if the platform has readline."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return
