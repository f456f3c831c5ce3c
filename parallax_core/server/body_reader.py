"""Reads request bodies in child processes: parses JSON, checks fields, renders templates, tokenizes."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from parallax_core.base.errors import BackendFailed, InvalidRequest, ParallaxError
from parallax_core.base.refs import Ref
from parallax_core.contracts.grammar import Grammar
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import (
    BodyRequest,
    BodyResult,
    DirectAnswer,
    MoreNeeded,
    ParsedBody,
    ParserTraits,
    RefusedBody,
    UnknownModel,
    make_sound,
    unpack,
)
from parallax_core.server.grammar_check import check_grammar
from parallax_core.server.model_name import find_model
from parallax_core.server.strict_json import read_body
from parallax_core.server.unknown_fields import IGNORED, LEFT_OUT, MOST_NAMED

logger = logging.getLogger(__name__)

ReadContent = ParsedBody | DirectAnswer | MoreNeeded
ReadBody = Callable[["BodyReader", Any, BodyRequest], ReadContent]
LoadedBody = tuple[Any, ReadBody]
"""The schema of a kind of body, and what reads it."""


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads bodies for one model."""

    text: ModelTokenizer
    model_id: str
    bodies: Mapping[str, LoadedBody]
    """By kind; see `load_bodies`."""
    parser: ParserTraits | None = None
    """Of the parser of the model's outputs; None: its text is not parsed."""

    def answer(self, ask: BodyRequest) -> BodyResult:
        """Read a body and return the result; faults of the body become a refusal."""
        ignored: dict[str, None] = {}
        context = contextvars.copy_context()
        context.run(IGNORED.set, ignored if ask.is_lenient else None)
        context.run(LEFT_OUT.set, ignored)
        try:
            content: ParsedBody | DirectAnswer | MoreNeeded | RefusedBody = context.run(self._read, ask)
        except ParallaxError as error:
            content = RefusedBody.of(error)
        except MemoryError:
            message = "reading the request takes more memory than it may"
            content = RefusedBody(kind="invalid", message=message, hint="shorten it")
        return BodyResult(content, tuple(map(make_sound, islice(ignored, MOST_NAMED))))

    def _read(self, ask: BodyRequest) -> ReadContent:
        if ask.kind == "grammar":
            seconds = check_grammar(self.text.grammars, msgspec.msgpack.decode(ask.body, type=Grammar))
            return write_answer(seconds=seconds)
        if ask.kind == "model":
            return write_answer(model=find_model(ask.body))
        if ask.kind == "plugin":
            read_other: Ref[Callable[[bytes], object]] = Ref(ask.reader)
            return DirectAnswer(msgspec.msgpack.encode(read_other.load()(ask.body)))
        if ask.kind not in self.bodies:
            message = f"the reader of {ask.kind!r} bodies cannot be imported"
            raise BackendFailed(message, "the server's log has the details")
        schema, read = self.bodies[ask.kind]
        body = read_body(_rewrite(ask), schema)
        names = tuple(dict.fromkeys((*ask.names, self.model_id)))
        body.model = body.model or names[0]
        if body.model not in names:
            known = ", ".join(map(repr, names))
            raise UnknownModel(f"the model '{body.model}' does not exist", f"this server has {known}")
        return read(self, body, ask)


def _rewrite(ask: BodyRequest) -> bytes:
    """Return the body that the route reads, which a plugin may have rewritten."""
    if not ask.reader:
        return ask.body
    rewrite: Ref[Callable[[bytes], bytes]] = Ref(ask.reader)
    return rewrite.load()(ask.body)


def load_bodies(targets: Mapping[str, tuple[str, str]]) -> dict[str, LoadedBody]:
    """Import the schema and the reader of each kind of body, and log those that cannot be imported."""
    found: dict[str, LoadedBody] = {}
    for kind, (schema, read) in targets.items():
        try:
            found[kind] = Ref[Any](schema).load(), Ref[ReadBody](read).load()
        except Exception:  # a plugin may raise anything and must not harm the others
            logger.exception("bodies of the kind %r cannot be read", kind)
    return found


def check_lengths(reading: ParsedBody, ask: BodyRequest, param: str, hint: str) -> ParsedBody:
    """Return a body whose prompts the model can hold.

    Raises:
        InvalidRequest: if one is too long, before it reaches an engine; it names the field ``param``.
    """
    longest = max(len(unpack(prompt)) for prompt in reading.prompts)
    if ask.max_length and longest >= ask.max_length:
        message = f"the prompt has {longest} tokens; this model can hold {ask.max_length} in all"
        raise InvalidRequest(message, param, hint)
    return reading


def write_answer(**fields: object) -> DirectAnswer:
    """Return the whole answer to a body that needs no engine."""
    return DirectAnswer(msgspec.json.encode(fields))
