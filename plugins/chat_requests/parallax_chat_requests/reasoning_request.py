"""Applies the fields of a request that say how much a model may reason.

One rule for every API: they permit reasoning, and none of them demands it. A model that reasons less keeps within all
of them, so one that does not reason takes every effort and every limit. A limit that cannot be kept is refused.
"""

from __future__ import annotations

from typing import Any

from parallax_core.api import InvalidRequest
from parallax_core.api.bodies import REASONING_SWITCHES, ModelTokenizer, ParserTraits, can_reason, has_setting

NUM_END_TOKENS, MAX_PROMPT_END = 64, 256
"""The number of tokens, and of characters, at the end of a prompt that a parser sees."""


def set_effort(text: ModelTokenizer, effort: str | None) -> dict[str, Any]:
    """Return the variables of the chat template for a ``reasoning_effort``, as far as it has them."""
    if effort is None:
        return {}
    found: dict[str, Any] = {name: effort != "none" for name in REASONING_SWITCHES if text.template_uses(name)}
    return {**found, "reasoning_effort": effort} if text.template_uses("reasoning_effort") else found


def close_reasoning(text: ModelTokenizer, prompt: tuple[int, ...], parser: ParserTraits | None) -> tuple[int, ...]:
    """Return a prompt that keeps a model from reasoning if its chat template cannot turn that off.

    Its answer begins with reasoning that has ended already, as templates with a setting write it.
    """
    if has_setting(text) or not can_reason(text, parser):
        return prompt
    assert parser is not None
    begin, _ = read_marks(parser, show_end(text, prompt)) or ("", "")
    return prompt + text.encode(begin + parser.reasoning_end, special=False)


def read_end(text: ModelTokenizer, limit: int | None, parser: ParserTraits | None) -> tuple[int, ...]:
    """Return the tokens that end the reasoning if it is limited; empty: this model does not reason, or has no limit.

    Raises:
        InvalidRequest: if it reasons, and the tokens are not known.
    """
    if limit is None:
        return ()
    if parser is not None and parser.reasoning_end:
        return text.encode(parser.reasoning_end, special=False)
    if has_setting(text):
        message = "this server does not know how this model ends its reasoning"
        raise InvalidRequest(message, "max_reasoning_tokens", "leave it out, or choose another parser with --parser")
    return ()


def read_marks(parser: ParserTraits | None, prompt_end: str) -> tuple[str, str] | None:
    """Return `Request.reasoning_marks` of an answer to a prompt that ends so."""
    if parser is None or parser.reasoning_marks is None:
        return None
    begin, end = parser.reasoning_marks
    return "" if prompt_end.rstrip().endswith(begin) else begin, end


def show_end(text: ModelTokenizer, prompt: tuple[int, ...]) -> str:
    """Return the end of a prompt, as far as a parser sees it."""
    return text.show(prompt[-NUM_END_TOKENS:])[-MAX_PROMPT_END:]
