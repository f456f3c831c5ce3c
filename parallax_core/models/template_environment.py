"""Makes Jinja environments for chat templates, like ``apply_chat_template`` in transformers.

Templates are written against that function: its tags, filters, globals, and the variables that it always sets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class GenerationTag(Extension):
    """The tag ``{% generation %}``, which marks an answer for training: renders its body and adds nothing."""

    tags = {"generation"}  # noqa: RUF012 -- declared so by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        """Return a call of `render` with the body of the tag, which so has variables of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("render"), [], [], body).set_lineno(line)

    def render(self, caller: Callable[[], str]) -> str:
        """Return what the body of the tag writes."""
        return caller()


class TemplateDict:
    """The global ``dict`` of templates: makes dictionaries, and gives no access to the class itself."""

    def __call__(self, *args: object, **entries: object) -> dict[Any, Any]:
        """Return a dictionary, as the class does."""
        return dict(*args, **entries)

    def fromkeys(self, keys: Iterable[Any], value: object = None) -> dict[Any, Any]:
        """Return a dictionary with one value for all keys, as the method of the class does."""
        return dict.fromkeys(keys, value)


class TemplateNamespace(Namespace):
    """The global ``namespace`` of templates: refuses names that begin with an underscore."""

    def __init__(*args: object, **entries: object) -> None:
        self, *rest = args
        attributes = dict(*rest, **entries)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        """Store an attribute."""
        _check_name(name)
        super().__setitem__(name, value)


def make_environment() -> jinja2.Environment:
    """Return a sandboxed environment for one chat template."""
    extensions = [GenerationTag, loopcontrols]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)  # noqa: A006, DTZ005
    environment.globals["dict"] = TemplateDict()
    environment.globals["namespace"] = TemplateNamespace
    return environment


def to_json(
    x: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 -- templates also pass it by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Return ``x`` as JSON; unlike Jinja's own filter, escape nothing for HTML, since prompts are not web pages."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        message = f"an attribute of a namespace cannot be called {name!r}"
        raise SecurityError(message)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
