"""What requests for a model may ask for, decided by the functions that refuse them."""

from __future__ import annotations

from collections.abc import Collection

from parallax_core.contracts.engine import Pooling
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import ParserTraits
from parallax_core.server.response_models import ModelCapability

REASONING_SWITCHES = ("enable_thinking", "thinking")
"""The variables that turn reasoning on or off in chat templates: of Qwen and GLM, of DeepSeek and Granite."""


def lists_calls(text: ModelTokenizer, parser: ParserTraits | None) -> bool:
    """Return whether a model calls tools by a list in JSON, since it has no format of its own that is known.

    A model whose answers are never JSON alone has one, even if its chat template shows it no tools.
    """
    return parser is None or not parser.finds_calls or (parser.may_force_calls and not text.takes_tools)


def _can_call(text: ModelTokenizer, parser: ParserTraits | None, *, takes_grammars: bool) -> bool:
    """Return whether a model may be given tools; a list of calls needs a grammar."""
    may_list = takes_grammars and (parser is None or parser.may_list_calls)
    return may_list or not lists_calls(text, parser)


def can_reason(text: ModelTokenizer, parser: ParserTraits | None) -> bool:
    """Return whether a model reasons: its chat template has a setting for that, or the marks of reasoning."""
    marks = (parser.reasoning_marks if parser else None) or ()
    has_marks = any(mark in text.template_source for mark in marks)
    return bool(parser and parser.reasoning_end) and (has_marks or has_setting(text))


def takes_effort(text: ModelTokenizer, parser: ParserTraits | None) -> bool:
    """Return whether requests for reasoning have an effect, also where it would be part of the text of the answer."""
    return has_setting(text) or can_reason(text, parser)


def has_setting(text: ModelTokenizer) -> bool:
    """Return whether a model's chat template has a setting for reasoning."""
    return any(map(text.template_uses, ("reasoning_effort", *REASONING_SWITCHES)))


def list_capabilities(
    text: ModelTokenizer, parser: ParserTraits | None, *, takes_grammars: bool, poolings: Collection[Pooling]
) -> list[ModelCapability]:
    """Return what requests for a model may ask for.

    Args:
        text: of the model.
        parser: of its outputs; None: its text is not parsed.
        takes_grammars: whether its engine and its tokenizer take requests with a grammar.
        poolings: how its engine makes embeddings.
    """
    able: dict[ModelCapability, bool] = {
        "completion": True,
        "chat": text.can_chat,
        "tools": text.can_chat and _can_call(text, parser, takes_grammars=takes_grammars),
        "structured_output": takes_grammars,
        "reasoning": text.can_chat and takes_effort(text, parser),
        "embeddings": text.can_embed and text.embedding_config.pooling in poolings,
    }
    return [name for name, is_able in able.items() if is_able]
