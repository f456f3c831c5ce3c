"""Describes tools and earlier calls to models with chat templates that cannot.

Such a model was not trained to call tools, or the format is not known. What it reads is in the system turn, and it
calls them by a list in JSON; see `GrammarLibrary.read_calls`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from parallax_core.api import InvalidRequest
from parallax_core.api.bodies import Tools, Turns

TOOLS = "You can call these functions. Each line describes one of them:\n"
LIST = 'a list in JSON: [{"name": "FUNCTION", "arguments": {...}}]'
MAY_CALL = (
    f"To call functions, answer with nothing but {LIST}. The next message has their results. "
    "If no function helps, answer in words."
)
MUST_CALL = f"Call one or more of them: answer with nothing but {LIST}."
MUST_CALL_NAMED = "Call the function {name}: answer with nothing but its arguments, an object in JSON."


def describe_tools(tools: Tools, forced: str | None, *, as_list: bool = True) -> str:
    """Return what a model is told of tools, and of how to call them by a list unless it has a format for that.

    ``forced``: see `ResponseForm.forced_call`.
    """
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    if not as_list:
        return f"{TOOLS}{chr(10).join(lines)}"
    how = MAY_CALL if forced is None else MUST_CALL_NAMED.format(name=forced) if forced else MUST_CALL
    return f"{TOOLS}{chr(10).join(lines)}\n\n{how}"


def encode_described(turns: Turns, text: str, encode: Callable[[Turns], tuple[int, ...]]) -> tuple[int, ...]:
    """Return the prompt of turns, with a text in the system turn: in one of the user if the template refuses that.

    Earlier calls and results are text, too; see `write_calls`.

    Raises:
        InvalidRequest: if the template refuses the turns.
    """
    turns = write_calls(turns)
    try:
        return encode(_put_in_system(turns, text))
    except InvalidRequest as error:
        if error.param != "messages" or turns[0]["role"] == "system":
            raise
        return encode(_put_in_user(turns, text))


def _put_in_system(turns: Turns, text: str) -> Turns:
    """Return the turns with a text at the end of the system turn, which is the first."""
    if turns[0]["role"] != "system":
        return [{"role": "system", "content": text}, *turns]
    return [_join(turns[0], {"content": text}), *turns[1:]]


def _put_in_user(turns: Turns, text: str) -> Turns:
    """Return the turns with a text before that of the first turn of the user."""
    for place, turn in enumerate(turns):
        if turn["role"] == "user":
            return [*turns[:place], _join({**turn, "content": text}, turn), *turns[place + 1 :]]
    return [{"role": "user", "content": text}, *turns]


def write_calls(turns: Turns) -> Turns:
    """Return the turns with calls as the text of the assistant, and results as that of the user.

    Neighbours of the user become one turn if one of them has results: many templates want turns to alternate.
    """
    if not any(turn["role"] == "tool" or turn.get("tool_calls") for turn in turns):
        return turns
    written: list[Mapping[str, Any]] = []
    names: dict[str, str] = {}
    follows_result = False
    for turn in turns:
        names |= {call["id"]: call["function"]["name"] for call in turn.get("tool_calls") or ()}
        told, is_result = _write_turn(turn, names), turn["role"] == "tool"
        joins = bool(written) and written[-1]["role"] == "user" == told["role"] and (is_result or follows_result)
        written[-1:] = [_join(written[-1], told)] if joins else [*written[-1:], told]
        follows_result = is_result
    return written


def _write_turn(turn: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a turn with its calls, or its result, as text; ``names``: of the functions, by the ids of the calls."""
    if turn["role"] == "tool":
        name = names.get(turn.get("tool_call_id", ""), "a function")
        return {"role": "user", "content": f"The result of {name}: {turn['content']}"}
    if not turn.get("tool_calls"):
        return turn
    functions = [{name: call["function"][name] for name in ("name", "arguments")} for call in turn["tool_calls"]]
    kept = {name: value for name, value in turn.items() if name != "tool_calls"}
    return _join(kept, {"content": json.dumps(functions, ensure_ascii=False)})


def _join(turn: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a turn with the content of both."""
    texts = [each["content"] for each in (turn, other) if each.get("content")]
    return {**turn, "content": "\n\n".join(texts)}
