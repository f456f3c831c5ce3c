"""Checks the grammar of an answer, dropping schemas of tools that spoil it and need not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from parallax_core.api import InvalidRequest
from parallax_core.api.grammars import AskedAnswer, Grammar, GrammarCheck
from parallax_grammars.json_calls import replace_schemas
from parallax_grammars.plain import is_plain

FAULT_S = 5.0
"""Seconds to look for the tools whose schemas make the grammar of an answer bad."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """The schema of a tool that is in the grammar of an answer."""

    name: str
    field: str
    """The field of the body with the schema."""
    grammar: Grammar
    must_hold: bool
    """Whether the client has asked that arguments follow it: the tool is strict, or the answer has to call one."""


async def check_answer(asked: AskedAnswer, check: GrammarCheck) -> tuple[Grammar, Sequence[str]]:
    """Return the grammar, and the fields of the schemas that are left out; see `GrammarLibrary.check_answer`.

    In a list of calls, the schema of a tool that is not strict is left out if it cannot be compiled: its arguments are
    any object then, as in the formats of models that were trained to call tools. If only the whole is too large, all
    such schemas are left out.
    """
    grammar = asked.grammar
    assert grammar is not None
    if is_plain(grammar) or (error := await _find_error(check, grammar)) is None:
        return grammar, ()
    faults = await _find_faults(asked, check)
    for schema, fault in faults:
        if schema.must_hold:
            message = fault.message.replace("the grammar", f"the schema of the tool '{schema.name[:100]}'", 1)
            raise _refuse(schema.field, message, fault)
    loose = [schema for schema, _ in faults] or [each for each in list_schemas(asked) if not each.must_hold]
    if loose:
        grammar = _leave_out(asked, grammar, {schema.name for schema in loose})
        error = await _find_error(check, grammar)
    if error is not None:
        raise _refuse(asked.field, error.message, error)
    return grammar, [schema.field for schema in loose]


def list_schemas(asked: AskedAnswer) -> Iterator[ToolSchema]:
    """Yield the schemas of tools that are in the grammar of the answers."""
    may_list = asked.lists_calls and asked.forced is None
    holds_all = may_list or asked.forced == ""
    held = asked.strict_tools if asked.forced is None else (asked.forced,)
    for name in asked.tools if holds_all else held:
        if field := asked.tool_fields.get(name):
            grammar = Grammar(kind="json_schema", source=asked.tools[name])
            yield ToolSchema(name, field, grammar, must_hold=not may_list or name in asked.strict_tools)


async def _find_error(check: GrammarCheck, grammar: Grammar) -> InvalidRequest | None:
    try:
        await check(grammar)
    except InvalidRequest as error:
        return error
    return None


async def _find_faults(asked: AskedAnswer, check: GrammarCheck) -> list[tuple[ToolSchema, InvalidRequest]]:
    """Return the schemas that cannot be compiled, up to the first that must hold, as far as they are found in time."""
    found: list[tuple[ToolSchema, InvalidRequest]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(FAULT_S):
            for schema in list_schemas(asked):
                if (error := await _find_error(check, schema.grammar)) is not None:
                    found.append((schema, error))
                    if schema.must_hold:
                        break
    return found


def _refuse(field: str, message: str, error: InvalidRequest) -> InvalidRequest:
    return InvalidRequest(f"'{field}': {message}", field, error.hint)


def _leave_out(asked: AskedAnswer, grammar: Grammar, names: Collection[str]) -> Grammar:
    """Return a grammar in which the arguments of some tools are any object."""
    schemas = {name: "{}" if name in names else schema for name, schema in asked.tools.items()}
    return replace_schemas(grammar, schemas, allows_many=asked.allows_many_calls)
