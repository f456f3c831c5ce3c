"""Renders a model's chat template: untrusted code that turns a conversation into a prompt.

It runs in Jinja's sandbox, without access to the system, and its output is bounded. The process it runs in bounds its
time and memory: see `parallax_core.server.tokenizer_pool`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from parallax_core.base.errors import InvalidRequest, ParallaxError

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
"""The variables that every chat template gets."""

Turns = Sequence[Mapping[str, Any]]
"""A conversation: each turn has ``role`` and ``content``; those with tools also OpenAI's other fields."""
Tools = Sequence[Mapping[str, Any]]
"""Tools in OpenAI's form."""
NAME = re.compile(r"[A-Za-z_]\w*")


class Arguments(dict[str, Any]):
    """The arguments of a tool call for templates: an object, and JSON text where a template writes them as text."""

    def __str__(self) -> str:
        return _to_json(self)

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
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.now().astimezone().strftime(pattern)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            message = f"the model's chat template cannot be read: {error}"
            raise ParallaxError(message, "fetch the model again, or report it to its authors") from error
        self._names = frozenset(NAME.findall(source))
        self._variables = dict(variables)
        self._max_characters = max_characters

    def render(
        self,
        turns: Turns,
        settings: Mapping[str, Any] | None = None,
        ending: PromptEnding = ANSWER,
        tools: Tools = (),
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
        fixed = {"messages": turns, "add_generation_prompt": ending.opens_answer, **self._variables}
        fixed |= {"tools": tools} if tools else {}
        try:
            prompt = self._write({**settings, **fixed})
        except (InvalidRequest, MemoryError):
            raise
        except Exception as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise InvalidRequest(message, "messages") from error
        return _cut(prompt, turns[-1]["content"] or "") if ending.continues_last else prompt

    def uses(self, name: str) -> bool:
        """Return whether a variable of that name may occur in the template."""
        return name in self._names

    def _write(self, variables: dict[str, Any]) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(variables):
            size += len(piece)
            if size > self._max_characters:
                message = f"the model's chat template writes more than {self._max_characters} characters"
                raise InvalidRequest(message, "messages", "shorten the conversation")
            pieces.append(piece)
        return "".join(pieces)


def read_source(folder: Path, settings: Mapping[str, Any], name: str = "default") -> str | None:
    """Return the chat template of a model folder, if it has one; ``settings`` is its ``tokenizer_config.json``.

    Of several templates in it, it is the one called ``name``; a single one is called ``default``.

    Raises:
        ParallaxError: if the template is not text.
    """
    try:
        return _find_source(folder / "chat_template.jinja", settings, name)
    except (LookupError, TypeError, AttributeError, UnicodeDecodeError) as error:
        message = f"the chat template in {folder} cannot be read: {error}"
        raise ParallaxError(message, "fetch the model again") from error


def _find_source(path: Path, settings: Mapping[str, Any], name: str) -> str | None:
    source = path.read_text(encoding="utf-8") if path.exists() else settings.get("chat_template")
    if isinstance(source, list):  # several named templates
        source = next((entry["template"] for entry in source if entry["name"] == name), None)
    elif name != "default":
        return None
    if not isinstance(source, str | None):
        message = f"it is a {type(source).__name__}"
        raise TypeError(message)
    return source


def _cut(prompt: str, content: str) -> str:
    """Return the prompt up to the end of the last turn's content, around which templates may strip spaces."""
    place = prompt.rfind(content.strip())
    if place < 0:
        message = "the model's chat template changes the last message, so that it cannot be continued"
        raise InvalidRequest(message, "continue_final_message", "leave it out")
    whole = content.lstrip()
    return prompt[: place + len(whole if prompt.startswith(whole, place) else content.strip())]


def _to_json(value: object, indent: int | None = None) -> str:
    """Return ``value`` as JSON; unlike Jinja's own filter, escape nothing for HTML, since prompts are not web pages."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(reason: str) -> NoReturn:
    raise jinja2.TemplateError(reason)
