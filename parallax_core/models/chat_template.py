"""Renders a model's chat template: untrusted code that turns a conversation into a prompt.

It runs in Jinja's sandbox, without access to the system, and its output is bounded. The process it runs in bounds its
time and memory: see `parallax_core.server.tokenizer_pool`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from parallax_core.base.errors import InvalidRequest, ParallaxError
from parallax_core.base.files import read_object
from parallax_core.checkpoint.folder_layout import TEMPLATES
from parallax_core.models.template_environment import make_environment, to_json

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
"""The variables that every chat template gets."""

Turns = Sequence[Mapping[str, Any]]
"""A conversation: each turn has ``role`` and ``content``; those with tools also OpenAI's other fields."""
Tools = Sequence[Mapping[str, Any]]
"""Tools in OpenAI's form."""
NAME = re.compile(r"[A-Za-z_]\w*")
NULL_CONTENT = re.compile(r"""content\b['"]?\]?\s+is\s+(not\s+)?none""", re.IGNORECASE)
"""Finds out whether a template tests the content of a turn for null."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names of the reasoning of a turn; the first is the one that most templates read."""
MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""Written behind the last message to find its end in the prompt; the space shows whether the template strips it."""


class Arguments(dict[str, Any]):
    """The arguments of a tool call for templates: an object, and JSON text where a template writes them as text."""

    def __str__(self) -> str:
        return to_json(self)

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptEnding:
    """The end of a prompt; at most one of both is true."""

    opens_answer: bool = True
    """The prompt ends with the beginning of an answer (``add_generation_prompt`` in transformers)."""
    continues_last: bool = False
    """The prompt ends within the last turn, which the model continues (``continue_final_message``)."""


ANSWER = PromptEnding()
"""The default: the prompt ends with the beginning of an answer."""


class ChatTemplate:
    """Renders conversations. Its constructor runs untrusted code as well: Jinja evaluates constant expressions.

    Args:
        source: a Jinja template, from ``tokenizer_config.json`` or ``chat_template.jinja``.
        variables: further variables for the template.
        max_characters: the longest prompt, in characters.

    Raises:
        ParallaxError: if ``source`` is not a valid template.
    """

    def __init__(self, source: str, variables: Mapping[str, str], max_characters: int) -> None:
        try:
            self._template = make_environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            message = f"the model's chat template cannot be read: {error}"
            raise ParallaxError(message, "fetch the model again, or report it to its authors") from error
        self._names = frozenset(NAME.findall(source))
        self._knows_null = NULL_CONTENT.search(source) is not None
        self._variables = dict(variables)
        self._max_characters = max_characters

    def render(
        self, turns: Turns, settings: Mapping[str, Any] | None = None, ending: PromptEnding = ANSWER, tools: Tools = ()
    ) -> str:
        """Return the prompt for a conversation with ``tools``; ``settings`` are further variables.

        Raises:
            InvalidRequest: if the template has no tools or refuses the conversation, or the prompt is too long.
            MemoryError: if rendering needs more memory than the process may use.
        """
        settings = settings or {}
        if tools and not self.uses("tools"):
            message = "this model's chat template has no tools"
            raise InvalidRequest(message, "tools", "leave them out, or serve a model that was trained to call tools")
        if taken := sorted(RESERVED.intersection(settings)):
            message = f"{taken[0]!r} is set by the server"
            raise InvalidRequest(message, "chat_template_kwargs", "leave it out")
        fixed = {"tools": list(tools) or None, "add_generation_prompt": ending.opens_answer}
        # The template of SmolLM3 reads the tools under a name of its own.
        variables = {"xml_tools": fixed["tools"], "documents": None, **self._variables, **settings, **fixed}
        turns = _mark_last(turns) if ending.continues_last else turns
        try:
            prompt = self._write_turns(variables, turns)
        except (InvalidRequest, MemoryError):
            raise
        except Exception as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise InvalidRequest(message, "messages") from error
        return _cut(prompt, turns[-1]["content"]) if ending.continues_last else prompt

    def uses(self, name: str) -> bool:
        """Return whether a variable of that name may occur in the template."""
        return name in self._names

    def _write_turns(self, variables: dict[str, Any], turns: Turns) -> str:
        """Render the turns; a template that needs every content gets null if it tests for that, else empty text."""
        plain = [_tidy(turn) for turn in turns]
        try:
            return self._write({**variables, "messages": plain})
        except (jinja2.UndefinedError, TypeError):
            if all("content" in turn for turn in plain):
                raise
            empty = {"content": None if self._knows_null else ""}
            return self._write({**variables, "messages": [empty | turn for turn in plain]})

    def _write(self, variables: dict[str, Any]) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(variables):
            size += len(piece)
            if size > self._max_characters:
                message = f"the model's chat template writes more than {self._max_characters} characters"
                raise InvalidRequest(message, "messages", "shorten the conversation")
            pieces.append(piece)
        return "".join(pieces)


def read_sources(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates of a model folder by their names; a single one is called ``default``.

    Files win over the settings: ``chat_template.jinja`` and those in `TEMPLATES`; the last resort is
    ``chat_template.json``, as older processors of images have it.

    Args:
        folder: of the model.
        settings: its ``tokenizer_config.json``.

    Raises:
        ParallaxError: if a template is not text.
    """
    try:
        return _read_files(folder) or _read_settings(settings) or _read_settings(_read_processor(folder))
    except (LookupError, TypeError, AttributeError, UnicodeDecodeError) as error:
        message = f"the chat template in {folder} cannot be read: {error}"
        raise ParallaxError(message, "fetch the model again") from error


def _read_files(folder: Path) -> dict[str, str]:
    single, further = folder / "chat_template.jinja", sorted((folder / TEMPLATES).glob("*.jinja"))
    found = {path.stem: path.read_text(encoding="utf-8") for path in further}
    return found | ({"default": single.read_text(encoding="utf-8")} if single.exists() else {})


def _read_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    source = settings.get("chat_template")
    named = {entry["name"]: entry["template"] for entry in source} if isinstance(source, list) else {"default": source}
    found = {name: text for name, text in named.items() if text is not None}
    for text in found.values():
        if not isinstance(text, str):
            message = f"it is a {type(text).__name__}"
            raise TypeError(message)
    return found


def _read_processor(folder: Path) -> Mapping[str, Any]:
    path = folder / "chat_template.json"
    return read_object(path) if path.exists() else {}


def _tidy(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn without fields of no value, and with its reasoning under each name that templates read."""
    found = {name: value for name, value in turn.items() if value is not None}
    reasoning = next((found[name] for name in REASONING if name in found), None)
    return found if reasoning is None else {"thinking": reasoning, **found, "reasoning_content": reasoning}


def _mark_last(turns: Turns) -> Turns:
    """Return the turns with a mark behind the content of the last one."""
    return [*turns[:-1], {**turns[-1], "content": (turns[-1].get("content") or "") + MARK}]


def _cut(prompt: str, content: str) -> str:
    """Return the prompt up to the mark; if the template has stripped the content, without the space before it, too."""
    place = prompt.rfind(MARK.strip())
    if content.strip() not in prompt:
        message = "the model's chat template changes the last message, so that it cannot be continued"
        raise InvalidRequest(message, "continue_final_message", "leave it out")
    return prompt[:place] if prompt.startswith(MARK, place) else prompt[:place].rstrip()
