"""Renders a model's chat template: untrusted code that turns a conversation into a prompt.

It runs in Jinja's sandbox, without access to the system, and its output is bounded. The process it runs in bounds its
time and memory: see `parallax_core.server.tokenizer_pool`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from parallax_core.base.errors import InvalidRequest, ParallaxError

RESERVED = frozenset({"messages", "add_generation_prompt", "bos_token", "eos_token"})
"""The variables that every chat template gets."""

Turns = Sequence[Mapping[str, str]]
"""A conversation: each turn has ``role`` and ``content``."""


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
        self._variables = dict(variables)
        self._max_characters = max_characters

    def render(self, turns: Turns, settings: Mapping[str, Any] | None = None, ending: PromptEnding = ANSWER) -> str:
        """Return the prompt for a conversation; ``settings`` are further variables.

        Raises:
            InvalidRequest: if the template refuses the conversation, or the prompt is too long.
            MemoryError: if rendering needs more memory than the process may use.
        """
        settings = settings or {}
        if taken := sorted(RESERVED.intersection(settings)):
            message = f"{taken[0]!r} is set by the server"
            raise InvalidRequest(message, "chat_template_kwargs", "leave it out")
        fixed = {"messages": turns, "add_generation_prompt": ending.opens_answer, **self._variables}
        try:
            prompt = self._write({**settings, **fixed})
        except (InvalidRequest, MemoryError):
            raise
        except Exception as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise InvalidRequest(message, "messages") from error
        return _cut(prompt, turns[-1]["content"]) if ending.continues_last else prompt

    def _write(self, variables: dict[str, Any]) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(variables):
            size += len(piece)
            if size > self._max_characters:
                message = f"the model's chat template writes more than {self._max_characters} characters"
                raise InvalidRequest(message, "messages", "shorten the conversation")
            pieces.append(piece)
        return "".join(pieces)


def read_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the chat template of a model folder, if it has one; ``settings`` is its ``tokenizer_config.json``.

    Raises:
        ParallaxError: if the template is not text.
    """
    try:
        return _find_source(folder / "chat_template.jinja", settings)
    except (LookupError, TypeError, AttributeError, UnicodeDecodeError) as error:
        message = f"the chat template in {folder} cannot be read: {error}"
        raise ParallaxError(message, "fetch the model again") from error


def _find_source(path: Path, settings: Mapping[str, Any]) -> str | None:
    source = path.read_text(encoding="utf-8") if path.exists() else settings.get("chat_template")
    if isinstance(source, list):  # several named templates
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
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
