"""Makes the grammar of an answer whose tool calls follow strict schemas: free text, then calls in the model's form."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence

from parallax_core.contracts.grammar import Grammar
from parallax_core.contracts.parser import CallForm
from parallax_core.models.grammars import JSON_OPTIONS
from parallax_core.server.forced_calls import MAX_CALLS, make_call_schema

OTHER = r"/[^{\[ \n](.|\n)*/"
"""An answer that does not begin as a call, if calls have no mark before them."""


def make_strict_grammar(
    form: CallForm,
    schemas: Mapping[str, str],
    strict: Collection[str],
    *,
    allows_many: bool,
    find_special: Callable[[str], str],
) -> Grammar:
    """Return the grammar of an answer that may call tools, after whose calls there is nothing more.

    Args:
        form: how the model writes calls.
        schemas: of the arguments, as JSON text, by the name of the tool.
        strict: the tools whose schemas hold; the arguments of the others may be any object.
        allows_many: whether an answer may have several calls.
        find_special: see `ModelGrammars.find_special`.
    """
    held = {name: schema if name in strict else "{}" for name, schema in schemas.items()}
    call = {**make_call_schema(held, form.arguments), "x-guidance": JSON_OPTIONS}

    def write(marks: Sequence[str]) -> str:
        return " ".join(f"space {find_special(mark) or json.dumps(mark)}" for mark in marks)

    more = f"({write(form.between)} space call){{0,{MAX_CALLS - 1}}}" if allows_many else ""
    lines = [
        f"start: {'calls' if form.begin else 'OTHER? | calls'}",
        f"calls: {write(form.opening)} space call {more} {write(form.end)}",
        "space: /[ \\n]{1,4}/?",
        f"call: %json {json.dumps(call)}",
    ]
    if not form.begin:
        lines.append(f"OTHER: {OTHER}")
    return Grammar(kind="lark", source="\n".join(lines), after=(form.begin,) if form.begin else ())
