"""``parallax chat``."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from typing import Annotated, Any

import typer

from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.cli.command import new_app

DEFAULT_URL = "http://127.0.0.1:8000/v1"

HELP = "Ctrl-C stops an answer, Ctrl-D ends the chat; /clear forgets the conversation"

app = new_app()


@app.command()
def chat(
    message: Annotated[
        str | None, typer.Argument(help="Ask this one thing and end; without it, a conversation.")
    ] = None,
    url: Annotated[str, typer.Option(help="The API of a running server.")] = DEFAULT_URL,
    system: Annotated[str, typer.Option(help="Instructions for the model, before the conversation.")] = "",
    temperature: Annotated[float | None, typer.Option(help="0 always takes the most probable token.", min=0)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens an answer may have.", min=1)] = None,
) -> None:
    """Talk to a running server in the terminal.

    Start one with `parallax serve`. A key is taken from PARALLAX_API_KEY. What comes through a pipe is one message.
    """
    client = Client(url.rstrip("/"))
    options = {"temperature": temperature, "max_tokens": max_tokens}
    talk = Conversation(client, client.model(), {name: value for name, value in options.items() if value is not None})
    if system:
        talk.begin(system)
    if message is None:
        message = _read_pipe()
    if message is not None:
        _print_answer(talk.ask(message))
        return
    _converse(talk)


def _read_pipe() -> str | None:
    """Return what comes through a pipe, None where a person types; bytes that are no UTF-8 show as replaced."""
    if sys.stdin is not None and sys.stdin.isatty():
        return None
    text = sys.stdin.buffer.read().decode(errors="replace").strip() if sys.stdin is not None else ""
    if not text:
        message = "there is nothing to ask: standard input is empty"
        raise UsageError(message, "give a message, or run it in a terminal")
    return text


class Client:
    """As much of OpenAI's API as a chat needs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def model(self) -> str:
        """Return the id of the server's first model.

        Raises:
            ParallaxError: if no server answers there, or not with a list of models.
        """
        with self._open("/models") as response:
            try:
                return str(json.load(response)["data"][0]["id"])
            except (ValueError, LookupError, TypeError) as error:
                message = f"what answers at {self._url} is no OpenAI-compatible server"
                raise ParallaxError(message, f"give its address with --url, such as {DEFAULT_URL}") from error

    def complete(self, body: dict[str, Any]) -> Iterator[str]:
        """Yield the text of a streamed answer, piece by piece.

        Raises:
            ParallaxError: if the server refuses, or breaks off.
        """
        with self._open("/chat/completions", {**body, "stream": True}) as response:
            for line in response:
                if not line.startswith(b"data: "):
                    continue
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise ParallaxError(event["error"]["message"])
                yield from (choice["delta"].get("content") or "" for choice in event["choices"])
        message = "the server broke off in the middle of its answer"
        raise ParallaxError(message, "its log may say why")

    def _open(self, path: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 -- what urlopen returns
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("PARALLAX_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = json.dumps(body).encode() if body is not None else None
        try:
            return urllib.request.urlopen(urllib.request.Request(self._url + path, data, headers))  # noqa: S310
        except urllib.error.HTTPError as error:
            raise _refusal(error) from error
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            message = f"no server answers at {self._url}: {reason}"
            raise ParallaxError(message, "start one with `parallax serve`, or give its address with --url") from error


def _refusal(error: urllib.error.HTTPError) -> ParallaxError:
    try:
        message = json.load(error)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = f"the server answered {error.code} {error.reason}"
    return ParallaxError(message, "set PARALLAX_API_KEY" if error.code == HTTPStatus.UNAUTHORIZED else "")


@dataclass
class Conversation:
    """The turns so far; only finished answers are remembered."""

    client: Client
    model: str
    options: dict[str, Any]
    turns: list[dict[str, str]] = field(default_factory=list)
    _num_fixed: int = 0

    def begin(self, system: str) -> None:
        """Set the instructions that `clear` keeps."""
        self.turns.append({"role": "system", "content": system})
        self._num_fixed = 1

    def clear(self) -> None:
        """Forget all turns but the instructions."""
        del self.turns[self._num_fixed :]

    def ask(self, message: str) -> Iterator[str]:
        """Yield the answer to ``message``, and remember both once it is complete."""
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


def _enable_editing() -> None:
    """Give ``input`` arrow keys and a history, where the platform has them."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return
