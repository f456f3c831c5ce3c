"""Describes models in the form of Anthropic's API, at the same path as OpenAI's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from msgspec import field

from parallax_core.api import InvalidRequest
from parallax_core.api.dialect import ModelReply, ResponseModel


class Support(ResponseModel):
    """Whether requests may ask for something."""

    supported: bool = False


NO, YES = field(default_factory=Support), field(default_factory=lambda: Support(supported=True))


class ContextEdits(Support):
    """Edits of the context."""

    clear_thinking_20251015: Support = NO
    clear_tool_uses_20250919: Support = NO
    compact_20260112: Support = NO


class EffortLevels(Support):
    """The levels of ``output_config.effort``."""

    low: Support = NO
    medium: Support = NO
    high: Support = NO
    xhigh: Support = NO
    max: Support = NO


class HostedTools(Support):
    """Tools that a server runs."""

    code_execution: Support = NO
    web_search: Support = NO


class ThinkingTypes(ResponseModel):
    """The types of ``thinking``, each of which is supported exactly if a request with it is not refused."""

    adaptive: Support = YES
    between_tools: Support = NO
    disabled: Support = YES
    enabled: Support = NO


class ThinkingSupport(Support):
    """Reasoning."""

    types: ThinkingTypes = field(default_factory=ThinkingTypes)


class MessageModelCapabilities(ResponseModel):
    """What requests for a model may ask for."""

    batch: Support = NO
    citations: Support = NO
    code_execution: Support = NO
    context_management: ContextEdits = field(default_factory=ContextEdits)
    effort: EffortLevels = field(default_factory=EffortLevels)
    image_input: Support = NO
    pdf_input: Support = NO
    server_tools: HostedTools = field(default_factory=HostedTools)
    structured_outputs: Support = NO
    thinking: ThinkingSupport = field(default_factory=ThinkingSupport)
    tools: Support = NO
    """Anthropic's own form lacks it, since all its models have tools."""


class MessageModelReply(ResponseModel, kw_only=True, tag_field="type", tag="model"):
    """A model, in the form of Anthropic's API."""

    id: str
    display_name: str
    created_at: str
    """The start of the server, by RFC 3339."""
    lifecycle: Literal["active"] = "active"
    line: None = None
    deprecated_at: None = None
    retires_at: None = None
    max_input_tokens: int | None
    """The largest number of tokens of a prompt and its answer together; null if it is not known yet."""
    max_tokens: int | None
    """The same."""
    capabilities: MessageModelCapabilities | None
    """Null while the model is not loaded."""


class MessageModelsReply(ResponseModel):
    """A page of the models, in the form of Anthropic's API."""

    data: list[MessageModelReply]
    first_id: str | None
    last_id: str | None
    has_more: bool
    """Whether there are more in the direction that was asked for."""


@dataclass(frozen=True, slots=True)
class ModelPage:
    """Which models a client asks for."""

    limit: int
    """The largest number of models."""
    after_id: str | None = None
    """They follow the model of this id."""
    before_id: str | None = None
    """They are right before the model of this id."""
    has_active: bool = True
    """Whether they may have the ``lifecycle`` that all models here have."""


def list_models(models: list[MessageModelReply], page: ModelPage) -> MessageModelsReply:
    """Return a page of models.

    Raises:
        InvalidRequest: if the page begins at no model, or at two.
    """
    if page.after_id and page.before_id:
        raise InvalidRequest("'after_id' and 'before_id' ask for different pages: send only one of them", "before_id")
    models = models if page.has_active else []
    ids = [each.id for each in models]
    if page.before_id:
        end = _find_place(ids, page.before_id, "before_id")
        begin = max(0, end - page.limit)
        has_more = begin > 0
    else:
        begin = _find_place(ids, page.after_id, "after_id") + 1 if page.after_id else 0
        end = begin + page.limit
        has_more = end < len(ids)
    first, last = (ids[begin:end][at] if ids[begin:end] else None for at in (0, -1))
    return MessageModelsReply(models[begin:end], first, last, has_more)


def _find_place(ids: list[str], name: str, field: str) -> int:
    if name not in ids:
        raise InvalidRequest(f"'{field}' is the id of no model", field)
    return ids.index(name)


def convert_model(model: ModelReply, *, limits_reasoning: bool) -> MessageModelReply:
    """Return a model in Anthropic's form.

    Args:
        model: the same in OpenAI's form.
        limits_reasoning: whether requests for it may limit the reasoning.
    """
    return MessageModelReply(
        id=model.id,
        display_name=model.id,
        created_at=datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=model.max_model_len,
        max_tokens=model.max_model_len,
        capabilities=_convert(model.capabilities, limits_reasoning=limits_reasoning) if model.capabilities else None,
    )


def _convert(able: Collection[str], *, limits_reasoning: bool) -> MessageModelCapabilities:
    reasons = "reasoning" in able
    return MessageModelCapabilities(
        effort=EffortLevels(reasons, *[Support(supported=reasons)] * 5),
        structured_outputs=Support("structured_output" in able),
        thinking=ThinkingSupport(reasons, ThinkingTypes(enabled=Support(limits_reasoning))),
        tools=Support("tools" in able),
    )
