"""The fields that ask for structured output: OpenAI's ``response_format``, and those of vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from parallax_chat_requests.fields import Variables
from parallax_core.api import Grammar, InvalidRequest
from parallax_core.api.bodies import Strict, TextField, find_library, refuse

MOST_CHOICES = 10_000
"""The most strings of a choice."""

WHITESPACE_PATTERN = re.compile(r"(?:\\[nrst]|[ \n\r\t\[\]()|?*+]|\{\d{1,3}(?:,\d{0,3})?\})*")
"""A regular expression that matches white space only."""

CLASS = re.compile(r"\[[^\]]*\]|\\s")
"""A class of characters in such an expression."""

SchemaName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
ChoiceTexts = Annotated[list[TextField], Field(min_length=1, max_length=MOST_CHOICES, fail_fast=True)]


class JsonSchemaFormat(Strict):
    """The ``json_schema`` of a ``response_format``."""

    model_config = ConfigDict(serialize_by_alias=True)
    place = "response_format.json_schema."

    name: SchemaName
    """A name of the schema, for the client's own use: up to 64 letters, digits, ``_`` and ``-``."""
    schema_: Variables | None = Field(default=None, alias="schema")
    """The JSON schema; any JSON object without it."""
    description: TextField | None = None
    """For the client's own use: models are not shown it."""
    strict: bool | None = None
    """Accepted for compatibility: answers always match the schema."""

    @classmethod
    def list_known(cls) -> list[str]:
        """Return the names of the known fields."""
        return ["name", "schema", "description", "strict"]


class ResponseFormat(Strict):
    """OpenAI's ``response_format``."""

    place = "response_format."

    type: Literal["text", "json_object", "json_schema"]
    """Any text, any JSON object, or JSON that matches ``json_schema``."""
    json_schema: JsonSchemaFormat | None = None
    """Only for the type ``json_schema``, which needs it."""

    @model_validator(mode="after")
    def check_schema(self) -> Self:
        """Check that there is a schema if and only if the type asks for one."""
        if self.type == "json_schema" and self.json_schema is None:
            raise refuse("json_schema", "'response_format.json_schema' is missing")
        if self.type != "json_schema" and self.json_schema is not None:
            raise refuse("json_schema", "'response_format.json_schema' is only for the type 'json_schema'")
        return self


class StructuredOutputs(Strict):
    """vLLM's ``structured_outputs``: exactly one form of the answer, and the white space of JSON."""

    model_config = ConfigDict(serialize_by_alias=True)
    place = "structured_outputs."

    json_: Variables | TextField | None = Field(default=None, alias="json")
    """A JSON schema, as an object or as text."""
    regex: TextField | None = None
    """A regular expression that the whole answer must match, in the syntax of Rust's ``regex``."""
    choice: ChoiceTexts | None = None
    """The possible answers."""
    grammar: TextField | None = None
    """A grammar: Lark in llguidance's dialect, or EBNF as llama.cpp writes it (GBNF)."""
    json_object: bool | None = None
    """Any JSON object."""
    disable_any_whitespace: bool | None = None
    """Whether there is no white space between the parts of JSON."""
    whitespace_pattern: TextField | None = None
    """A regular expression for the white space between the parts of JSON."""

    @model_validator(mode="after")
    def check_whitespace(self) -> Self:
        """Check that the white space is white space, and given once."""
        pattern = self.whitespace_pattern
        if pattern is not None and not WHITESPACE_PATTERN.fullmatch(pattern):
            raise refuse("whitespace_pattern", "'structured_outputs.whitespace_pattern' matches more than white space")
        if pattern is not None and self.disable_any_whitespace:
            message = (
                "'structured_outputs' has 'whitespace_pattern' and 'disable_any_whitespace': send only one of them"
            )
            raise refuse("whitespace_pattern", message)
        return self

    @property
    def whitespace(self) -> str | None:
        """The white space that is asked for; see `Grammar.whitespace`."""
        pattern = "" if self.disable_any_whitespace else self.whitespace_pattern
        return pattern and CLASS.sub(_write_json_space, pattern)

    @property
    def has_form(self) -> bool:
        """Whether it has a form of the answer."""
        return any(getattr(self, name) not in (None, False) for name in READ)

    @classmethod
    def list_known(cls) -> list[str]:
        """Return the names of the known fields."""
        return ["json", "regex", "choice", "grammar", "json_object", "disable_any_whitespace", "whitespace_pattern"]


def read_structured(value: StructuredOutputs, field: str = "structured_outputs") -> Grammar | None:
    """Return the grammar of vLLM's fields; None if none of them is set.

    Raises:
        InvalidRequest: if several are set, or a grammar is not valid; it names ``field``.
    """
    asked = {name: given for name, given in value if name in READ and given is not None and given is not False}
    if len(asked) > 1:
        names = " and ".join(repr(name.rstrip("_")) for name in asked)
        raise InvalidRequest(f"'{field}' has {names}: send only one of them", field)
    return next((READ[name](given, field) for name, given in asked.items()), None)


def read_format(value: ResponseFormat) -> Grammar | None:
    """Return the grammar of a ``response_format``; None for any text."""
    if value.type == "text":
        return None
    schema = value.json_schema.schema_ if value.json_schema is not None else None
    return Grammar(kind="json_object") if schema is None else _read_schema(schema, "response_format")


def _read_schema(value: dict[str, Any] | str, field: str) -> Grammar:
    del field
    return Grammar(kind="json_schema", source=value if isinstance(value, str) else json.dumps(value))


def _read_grammar(value: str, field: str) -> Grammar:
    try:
        return Grammar(kind="lark", source=find_library().read_ebnf(value))
    except ValueError as error:
        message = f"'{field}' is no grammar in Lark or EBNF: {str(error)[:300]}"
        raise InvalidRequest(message, field) from error


def _write_json_space(found: re.Match[str]) -> str:
    r"""Return a character class with the white space of JSON, not of Unicode, for ``\s``."""
    return r"[ \t\n\r]" if found[0] == r"\s" else found[0].replace(r"\s", r" \t\n\r")


READ: dict[str, Callable[[Any, str], Grammar]] = {
    "json_": _read_schema,
    "regex": lambda value, _: Grammar(kind="regex", source=value),
    "choice": lambda value, _: Grammar(kind="choice", source=json.dumps(value)),
    "grammar": _read_grammar,
    "json_object": lambda _value, _: Grammar(kind="json_object"),
}
"""By field of `StructuredOutputs`: what reads its value."""
