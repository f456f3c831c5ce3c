"""Writes the grammars of answers that call tools in JSON; see `AskedAnswer`.

vLLM forces calls in the same way (https://docs.vllm.ai, "Tool Calling").
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from parallax_core.api.grammars import Grammar
from parallax_grammar_tools.schema_refs import JsonSchema, localize_references, move_references

MAX_CALLS = 16
"""The most calls of an answer."""
TEXT = r"/([^\[ \n]|\[[^{\[ \n])(.|\n)*/"
"""An answer that calls nothing, after white space: a list of calls begins with ``[{``."""


def make_forced_grammar(schemas: Mapping[str, str], named: str, *, allows_many: bool, after: Sequence[str]) -> Grammar:
    """Return the grammar of an answer that calls a tool.

    Args:
        schemas: of the arguments, as JSON text, by the name of the tool.
        named: the tool that has to be called; empty: any of them.
        allows_many: whether an answer may have several calls.
        after: see `Grammar.after`.
    """
    if named:
        source = json.dumps(_as_object(json.loads(schemas[named])))
    else:
        source = json.dumps(make_list_schema(schemas, allows_many=allows_many))
    return Grammar(kind="json_schema", source=source, after=tuple(after), must_begin=True)


def make_list_grammar(schemas: Mapping[str, str], *, allows_many: bool, answer: str = "") -> Grammar:
    """Return the grammar of an answer that may be a list of calls.

    Args:
        schemas: of the arguments, as JSON text, by the name of the tool.
        allows_many: whether there may be several calls.
        answer: the JSON schema of an answer that calls nothing; empty: it is any text.
    """
    lines = [
        _write_calls(schemas, allows_many=allows_many),
        "start: space " + ("(answer | calls)" if answer else "(TEXT? | calls)"),
        "space: /[ \\n]{1,4}/?",
        write_json_rule(answer) if answer else f"TEXT: {TEXT}",
    ]
    return Grammar(kind="lark", source="\n".join(lines))


def replace_schemas(grammar: Grammar, schemas: Mapping[str, str], *, allows_many: bool) -> Grammar:
    """Return such a grammar with other schemas."""
    _, _, rest = grammar.source.partition("\n")
    return msgspec.structs.replace(grammar, source=f"{_write_calls(schemas, allows_many=allows_many)}\n{rest}")


def _write_calls(schemas: Mapping[str, str], *, allows_many: bool) -> str:
    """Return the rule of a list of calls, which is one line."""
    return f"calls: %json {json.dumps(make_list_schema(schemas, allows_many=allows_many))}"


def write_json_rule(answer: str) -> str:
    """Return the rule of an answer with a JSON schema; options for its compiler are not the client's."""
    schema = {name: value for name, value in json.loads(answer).items() if name != "x-guidance"}
    return f"answer: %json {json.dumps(schema)}"


def make_list_schema(schemas: Mapping[str, str], *, allows_many: bool) -> JsonSchema:
    """Return the schema of a list of calls; see `make_forced_grammar`."""
    call, most = make_call_schema(schemas), MAX_CALLS if allows_many else 1
    return {"type": "array", "items": call, "minItems": 1, "maxItems": most, "$defs": call.pop("$defs")}


def make_call_schema(schemas: Mapping[str, str], arguments: str = "arguments") -> JsonSchema:
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
        fields: dict[str, Any] = {"name": {"const": name}, arguments: {"$ref": f"#/$defs/{place}"}}
        variants.append(
            {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        )
    return {"anyOf": variants, "$defs": parts}


def _as_object(schema: JsonSchema) -> JsonSchema:
    """Return a schema that allows objects only."""
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}
