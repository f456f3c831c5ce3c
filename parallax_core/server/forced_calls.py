"""Forces tool calls: the grammar of an answer that has to be a call, and the parser of such an answer.

The answer is JSON, whatever the format of the model: the arguments of a named function, or a list of calls. vLLM
forces calls in the same way (https://docs.vllm.ai, "Tool Calling").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from parallax_core.base.json_scan import JsonScan
from parallax_core.base.schema_refs import localize_references, move_references
from parallax_core.contracts.grammar import Grammar
from parallax_core.contracts.parser import Content, Parser, Piece, ToolCall

MAX_CALLS = 16
"""The most calls of an answer that has to call tools."""
HEAD = re.compile(r'[\s,\[\]}]*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*(?=\{)')
"""The text between the arguments of two calls."""


def make_grammar(schemas: Mapping[str, str], named: str, *, allows_many: bool, after: Sequence[str]) -> Grammar:
    """Return the grammar of an answer that calls a tool.

    Args:
        schemas: of the arguments, as JSON text, by the name of the tool.
        named: the tool that has to be called; empty: any of them.
        allows_many: whether an answer may have several calls.
        after: see `Grammar.after`.
    """
    if named:
        source = json.dumps(_as_object(json.loads(schemas[named])))
        return Grammar(kind="json_schema", source=source, after=tuple(after), must_begin=True)
    source = json.dumps(make_list_schema(schemas, allows_many=allows_many))
    return Grammar(kind="json_schema", source=source, after=tuple(after), must_begin=True)


def make_list_schema(schemas: Mapping[str, str], *, allows_many: bool) -> dict[str, Any]:
    """Return the schema of a list of calls; see `make_grammar`."""
    call, most = make_call_schema(schemas), MAX_CALLS if allows_many else 1
    return {"type": "array", "items": call, "minItems": 1, "maxItems": most, "$defs": call.pop("$defs")}


def make_call_schema(schemas: Mapping[str, str], arguments: str = "arguments") -> dict[str, Any]:
    """Return the schema of an object that calls one of the tools; its ``$defs`` hold where it is the root.

    Args:
        schemas: of the arguments, as JSON text, by the name of the tool.
        arguments: the key of the arguments.
    """
    variants, parts = [], {}
    for number, (name, schema) in enumerate(schemas.items()):
        place = f"tool{number}"
        own = localize_references(_as_object(json.loads(schema)))
        parts[place] = move_references(own, f"#/$defs/{place}")
        fields = {"name": {"const": name}, arguments: {"$ref": f"#/$defs/{place}"}}
        variants.append(
            {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        )
    return {"anyOf": variants, "$defs": parts}


def _as_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that allows objects only."""
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


class ForcedCallParser:
    """Reads an answer that follows such a grammar; the model's own parser finds the reasoning before it."""

    def __init__(self, inner: Parser, named: str) -> None:
        """Read calls of the tool ``named``, or of any if it is empty, from the content that ``inner`` finds."""
        self._inner = inner
        self._named = named
        self._text = ""
        self._num_calls = 0
        self._scan: JsonScan | None = None

    def feed(self, text: str) -> Sequence[Piece]:
        """See `Parser.feed`."""
        return self._read(self._inner.feed(text))

    def finish(self) -> Sequence[Piece]:
        """See `Parser.finish`."""
        pieces, rest = self._read(self._inner.finish()), self._text
        self._text = ""
        is_call = self._num_calls > 0 or not rest.strip()
        return pieces if is_call else [*pieces, Content(rest)]

    def _read(self, pieces: Sequence[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Content):
                self._text += piece.text
                while self._advance(found):
                    pass
            else:
                found.append(piece)
        return found

    def _advance(self, found: list[Piece]) -> bool:
        """Read the beginning of a call, or more of its arguments; return whether there may be more to read."""
        if self._scan is None:
            return self._open(found)
        stop = self._scan.find_end(self._text, 0)
        arguments, self._text = self._text[:stop], "" if stop is None else self._text[stop:]
        if arguments:
            found.append(ToolCall(self._num_calls - 1, arguments=arguments))
        if stop is not None:
            self._scan = None
        return stop is not None

    def _open(self, found: list[Piece]) -> bool:
        head = HEAD.match(self._text)
        start = self._text.find("{") if self._named else head.end() if head else -1
        if start < 0 or (self._named and self._num_calls):
            return False
        found.append(ToolCall(self._num_calls, self._named or (head[1] if head else "")))
        self._text, self._scan = self._text[start:], JsonScan()
        self._num_calls += 1
        return True
