"""Checks the grammar of an answer, dropping schemas of tools that spoil it and need not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.grammar import Grammar
from parallax_core.server.body_messages import BodyResult, ParsedBody, RefusedBody
from parallax_core.server.listed_calls import replace_schemas

FAULT_S = 5.0
"""Seconds to look for the tools whose schemas make the grammar of an answer bad."""

GrammarCheck = Callable[[Grammar], Awaitable[None]]
"""Compiles a grammar; raises InvalidRequest if that fails."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """The schema of a tool that is in the grammar of an answer."""

    name: str
    field: str
    """The field of the body with the schema."""
    grammar: Grammar
    must_hold: bool
    """Whether the client has asked that arguments follow it: the tool is strict, or the answer has to call one."""


async def check_answer(result: BodyResult, check: GrammarCheck) -> BodyResult:
    """Return the result if the grammar of the answers can be compiled, and a refusal otherwise.

    In a list of calls, the schema of a tool that is not strict is left out if it cannot be compiled: its arguments are
    any object then, as in the formats of models that were trained to call tools. If only the whole is too large, all
    such schemas are left out. `BodyResult.ignored` names them.
    """
    content = result.content
    if not isinstance(content, ParsedBody) or (grammar := content.request.grammar) is None:
        return result
    if (error := await _find_error(check, grammar)) is None:
        return result
    faults = await _find_faults(content, check)
    for schema, fault in faults:
        if schema.must_hold:
            return msgspec.structs.replace(result, content=_refuse(content, schema, fault))
    loose = [schema for schema, _ in faults] or [each for each in list_schemas(content) if not each.must_hold]
    if loose:
        content = _leave_out(content, {schema.name for schema in loose})
        assert content.request.grammar is not None
        error = await _find_error(check, content.request.grammar)
    if error is not None:
        return msgspec.structs.replace(result, content=content.refuse_grammar(error))
    ignored = (*result.ignored, *(schema.field for schema in loose))
    return msgspec.structs.replace(result, content=content, ignored=ignored)


def list_schemas(content: ParsedBody) -> Iterator[ToolSchema]:
    """Yield the schemas of tools that are in the grammar of the answers."""
    form = content.form
    may_list = form.lists_calls and form.forced_call is None
    holds_all = may_list or form.forced_call == ""
    held = form.strict_tools if form.forced_call is None else (form.forced_call,)
    for name in form.tools if holds_all else held:
        if field := form.tool_fields.get(name):
            grammar = Grammar(kind="json_schema", source=form.tools[name])
            yield ToolSchema(name, field, grammar, must_hold=not may_list or name in form.strict_tools)


async def _find_error(check: GrammarCheck, grammar: Grammar) -> InvalidRequest | None:
    try:
        await check(grammar)
    except InvalidRequest as error:
        return error
    return None


async def _find_faults(content: ParsedBody, check: GrammarCheck) -> list[tuple[ToolSchema, InvalidRequest]]:
    """Return the schemas that cannot be compiled, up to the first that must hold, as far as they are found in time."""
    found: list[tuple[ToolSchema, InvalidRequest]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(FAULT_S):
            for schema in list_schemas(content):
                if (error := await _find_error(check, schema.grammar)) is not None:
                    found.append((schema, error))
                    if schema.must_hold:
                        break
    return found


def _refuse(content: ParsedBody, schema: ToolSchema, error: InvalidRequest) -> RefusedBody:
    message = error.message.replace("the grammar", f"the schema of the tool '{schema.name[:100]}'", 1)
    return content.refuse_grammar(InvalidRequest(message, hint=error.hint), schema.field)


def _leave_out(content: ParsedBody, names: Collection[str]) -> ParsedBody:
    """Return the body with a grammar in which the arguments of some tools are any object."""
    form, grammar = content.form, content.request.grammar
    assert grammar is not None
    schemas = {name: "{}" if name in names else schema for name, schema in form.tools.items()}
    grammar = replace_schemas(grammar, schemas, allows_many=form.allows_many_calls)
    return msgspec.structs.replace(content, request=replace(content.request, grammar=grammar))
