"""Makes the grammar of an answer that may call tools by strict schemas: text, free or of a form, or calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from parallax_core.contracts.grammar import Grammar
from parallax_core.contracts.parser import CallForm
from parallax_core.server.forced_calls import MAX_CALLS, make_call_schema
from parallax_core.server.listed_calls import write_answer

OTHER = r"/[^{\[ \n](.|\n)*/"
"""An answer that does not begin as a call, if calls have no mark before them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallableTools:
    """The tools that an answer may call."""

    schemas: Mapping[str, str]
    """Of the arguments, as JSON text, by the name of the tool."""
    strict: Collection[str]
    """The tools whose schemas hold; the arguments of the others may be any object."""
    allows_many: bool
    """Whether an answer may have several calls."""


def make_strict_grammar(
    form: CallForm, tools: CallableTools, find_special: Callable[[str], str], answer: str = ""
) -> Grammar:
    """Return the grammar of an answer that may call tools, after whose calls there is nothing more.

    Without ``answer``, any text may come before the calls, or in their place.

    Args:
        form: how the model writes calls.
        tools: what it may call.
        find_special: see `ModelGrammars.find_special`.
        answer: the JSON schema of an answer that does not call any; empty: it is free.
    """
    held = {name: schema if name in tools.strict else "{}" for name, schema in tools.schemas.items()}
    call = make_call_schema(held, form.arguments)

    def write(marks: Sequence[str]) -> str:
        return " ".join(f"space {find_special(mark) or json.dumps(mark)}" for mark in marks)

    more = f"({write(form.between)} space call){{0,{MAX_CALLS - 1}}}" if tools.allows_many else ""
    lines = [
        f"calls: {write(form.opening)} space call {more} {write(form.end)}",
        "space: /[ \\n]{1,4}/?",
        f"call: %json {json.dumps(call)}",
    ]
    if answer:
        start = f"start: space answer | {write([form.begin] if form.begin else [])} calls"
        lines += [start, write_answer(answer)]
    elif form.begin:
        lines.append("start: calls")
    else:
        lines += ["start: OTHER? | calls", f"OTHER: {OTHER}"]
    is_free = bool(form.begin) and not answer
    return Grammar(kind="lark", source="\n".join(lines), after=(form.begin,) if is_free else ())


def make_marked_grammar(
    marks: Sequence[str], special_tokens: Collection[str], find_special: Callable[[str], str], answer: str
) -> Grammar:
    """Return the grammar of an answer with a schema, or of calls of which only the beginning is known.

    Args:
        marks: what calls begin with; free text follows.
        special_tokens: of the model, which that text may have.
        find_special: see `ModelGrammars.find_special`.
        answer: the JSON schema of an answer that does not call any tool.
    """
    special = [found for token in special_tokens if (found := find_special(token))]
    more = f" (({' | '.join(special)}) TEXT?)*" if special else ""
    lines = [
        "start: space (answer | mark calls)",
        "space: /[ \\n]{1,4}/?",
        "mark: " + " | ".join(find_special(mark) or json.dumps(mark) for mark in marks),
        f"calls: TEXT?{more}",
        "TEXT: /(.|\\n)+/",
        write_answer(answer),
    ]
    return Grammar(kind="lark", source="\n".join(lines))
