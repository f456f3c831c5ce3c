"""Talk to a running server in the terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from parallax_chat.answer import AnswerPiece
from parallax_chat.complete import continue_text
from parallax_chat.conversation import Conversation
from parallax_client.client import Client
from parallax_client.server_url import UrlOption, find_url
from parallax_core.api import ParallaxError, cache_folder
from parallax_core.api.cli import UsageError, new_app

HELP = 'Ctrl-C stops an answer, Ctrl-D ends the chat; """ begins and ends several lines; /help lists the commands'
COMMAND = re.compile("/[a-z]+")
"""Input that looks like a command, not like a path."""
BLOCK = '"""'
"""Begins and ends a message of several lines."""
MAX_HISTORY = 1000
"""The number of lines of the history that are kept."""
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
"""The codes of a terminal for dimmed text, and for its end."""

app = new_app()


@app.command()
def chat(
    message: Annotated[
        str | None, typer.Argument(help="One question to ask; without it, a conversation begins.")
    ] = None,
    url: UrlOption = None,
    system: Annotated[
        str, typer.Option(help="Instructions for the model, before the conversation.", metavar="TEXT")
    ] = "",
    temperature: Annotated[
        float | None, typer.Option(help="0 always takes the most probable token.", min=0, metavar="T")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="The most tokens an answer may have.", min=1, metavar="N")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue a text, or that of a pipe, without a chat template.")
    ] = False,
    stop: Annotated[
        list[str] | None, typer.Option(help="End an answer before this text; may be repeated.", metavar="TEXT")
    ] = None,
) -> None:
    """Talk to a running server in the terminal.

    Start one with `parallax serve`. A key is taken from PARALLAX_API_KEY. What comes through a pipe is one message.
    A terminal shows the reasoning of a model dimmed; elsewhere only the answer is printed.

    With --raw it is for pipes, and prints nothing but the continuation, of 128 tokens unless --max-tokens says
    otherwise. Example: head -20 story.txt | parallax chat --raw
    """
    client = Client(find_url(url))
    given = {"temperature": temperature, "max_tokens": max_tokens, "stop": stop or None}
    options = {name: value for name, value in given.items() if value is not None}
    if raw:
        if system:
            raise UsageError("--system needs a chat, and --raw continues plain text", "write it before the text")
        continue_text(client, message, options)
        return
    talk = Conversation(client, client.model(), options)
    talk.begin(system)
    if message is None:
        message = _read_pipe()
    if message is not None:
        _print_answer(talk.ask(message))
        return
    with _typing_ahead(), _history():
        _converse(talk)


def _read_pipe() -> str | None:
    """Return the text of a pipe, or None on a terminal; invalid UTF-8 becomes replacement characters.

    Raises:
        UsageError: if there is no text.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        return None
    text = sys.stdin.buffer.read().decode(errors="replace").strip() if sys.stdin is not None else ""
    if not text:
        message = "there is nothing to ask: standard input is empty"
        raise UsageError(message, "give a message, or run it in a terminal")
    return text


def _converse(talk: Conversation) -> None:
    print(f"{talk.model}: {HELP}", file=sys.stderr)
    while True:
        try:
            message = _read_message().strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if message == "/quit":
            return
        try:
            shown = talk.run(message)
        except UsageError as error:
            shown = f"error: {error.message}; {error.hint}"
        if shown is not None:
            print(shown, file=sys.stderr)
        elif COMMAND.fullmatch(message):
            print(f"there is no command {message}: {HELP}", file=sys.stderr)
        elif message:
            _answer(talk, message)


def _read_message() -> str:
    """Return the next message: a line, lines that end with a backslash, or lines between two marks `BLOCK`."""
    line = input("> ")
    if line.startswith(BLOCK):
        lines = [line.removeprefix(BLOCK)]
        while not lines[-1].rstrip().endswith(BLOCK):
            lines.append(input("... "))
        return "\n".join(lines).rstrip().removesuffix(BLOCK)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1].removesuffix("\\")
        lines.append(input("... "))
    return "\n".join(lines)


def _answer(talk: Conversation, message: str) -> None:
    try:
        _print_answer(talk.ask(message))
    except KeyboardInterrupt:
        print(f"{_style(PLAIN)} ...stopped")
    except ParallaxError as error:
        print(f"error: {error.message}", file=sys.stderr)


def _print_answer(answer: Iterator[AnswerPiece]) -> None:
    """Print an answer as it comes; its reasoning dimmed on a terminal, and nowhere else."""
    was_reasoning = False
    for piece in answer:
        if piece.is_reasoning and not sys.stdout.isatty():
            continue
        if piece.is_reasoning != was_reasoning:
            print(_style(DIM) if piece.is_reasoning else _style(PLAIN) + "\n\n", end="")
            was_reasoning = piece.is_reasoning
        print(piece.text, end="", flush=True)
    print(_style(PLAIN) if was_reasoning else "")


def _style(code: str) -> str:
    """Return the code, or nothing where the output is no terminal or shows no styles (https://no-color.org)."""
    return code if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else ""


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


@contextmanager
def _history() -> Iterator[None]:
    """Give ``input`` arrow keys and a history that is kept between chats, if the platform has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = cache_folder("chat") / "history"  # the folder is for its owner only
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(MAX_HISTORY)
    try:
        yield
    finally:
        with suppress(OSError):
            readline.write_history_file(path)
