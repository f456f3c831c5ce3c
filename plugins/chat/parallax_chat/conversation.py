"""A conversation with a model, and the commands that change it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax_chat.answer import AnswerPiece, stream_answer
from parallax_client.client import Client
from parallax_core.api.cli import UsageError

COMMANDS = {
    "/help": "show this list",
    "/clear": "forget the conversation, except the instructions",
    "/system [TEXT]": "set the instructions for the model, or show them",
    "/set [NAME [VALUE]]": "set a field of the requests, such as temperature 0.2; unset it; or show all",
    "/save FILE": "write the conversation to a JSON file",
    "/load FILE": "continue the conversation of such a file",
    "/quit": "end the chat, as Ctrl-D does",
}
"""The commands, each with its arguments, and what they do."""

OWN_FIELDS = frozenset({"model", "messages", "stream", "stream_options", "n"})
"""The fields of a request that the chat itself sets."""


@dataclass
class Conversation:
    """The turns so far; only complete answers are kept."""

    client: Client
    model: str
    options: dict[str, Any]
    turns: list[dict[str, str]] = field(default_factory=list)

    def begin(self, system: str) -> None:
        """Set the instructions for the model, which `clear` keeps; an empty text removes them."""
        rest = [turn for turn in self.turns if turn["role"] != "system"]
        self.turns = [*([{"role": "system", "content": system}] if system else []), *rest]

    def clear(self) -> None:
        """Forget all turns except the instructions."""
        self.turns = [turn for turn in self.turns if turn["role"] == "system"]

    def ask(self, message: str) -> Iterator[AnswerPiece]:
        """Yield the answer to ``message``, and keep both turns once it is complete."""
        turns = [*self.turns, {"role": "user", "content": message}]
        parts = []
        for piece in stream_answer(self.client, {"model": self.model, "messages": turns, **self.options}):
            if not piece.is_reasoning:
                parts.append(piece.text)
            yield piece
        self.turns = [*turns, {"role": "assistant", "content": "".join(parts)}]

    def run(self, line: str) -> str | None:
        """Run a command; return the text to show, or None if the line is no command.

        Raises:
            UsageError: if the arguments are wrong.
        """
        name, _, rest = line.partition(" ")
        actions = {
            "/help": lambda _: list_commands(),
            "/clear": self._clear,
            "/system": self._system,
            "/set": self._set,
            "/save": self._save,
            "/load": self._load,
        }
        return actions[name](rest.strip()) if name in actions else None

    def _clear(self, _: str) -> str:
        self.clear()
        return "the conversation is forgotten"

    def _system(self, text: str) -> str:
        if text:
            self.begin(text)
        return next((turn["content"] for turn in self.turns if turn["role"] == "system"), "there are no instructions")

    def _set(self, text: str) -> str:
        name, _, value = text.partition(" ")
        if name in OWN_FIELDS:
            message = f"{name} is set by the chat itself"
            raise UsageError(message, "set a field such as temperature, max_tokens or seed")
        if name and value.strip():
            self.options[name] = _read_value(value.strip())
        elif name:
            self.options.pop(name, None)
        return "\n".join(f"{key} = {json.dumps(each)}" for key, each in self.options.items()) or "nothing is set"

    def _save(self, text: str) -> str:
        path = _read_path(text)
        try:
            path.write_text(json.dumps(self.turns, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror}"
            raise UsageError(message, "choose another file") from error
        return f"{len(self.turns)} turns saved to {path}"

    def _load(self, text: str) -> str:
        path = _read_path(text)
        try:
            turns = json.loads(path.read_text(encoding="utf-8"))
            self.turns = [{"role": str(turn["role"]), "content": str(turn["content"])} for turn in turns]
        except (OSError, ValueError, TypeError, LookupError) as error:
            message = f"{path} cannot be read as a conversation: {error}"
            raise UsageError(message, "load a file that /save wrote") from error
        return f"{len(self.turns)} turns loaded from {path}"


def list_commands() -> str:
    """Return the list of commands."""
    return "\n".join(f"{usage:<22}{text}" for usage, text in COMMANDS.items())


def _read_path(text: str) -> Path:
    try:
        names = shlex.split(text)
    except ValueError:
        names = []
    if len(names) != 1:
        message = "this command needs the name of one file"
        raise UsageError(message, 'quote a name with spaces: /save "my chat.json"')
    return Path(names[0]).expanduser()


def _read_value(text: str) -> Any:  # noqa: ANN401 -- any JSON
    """Return a value: JSON if the text is, else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
