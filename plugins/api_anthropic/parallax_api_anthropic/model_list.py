"""Describes models in the form of Anthropic's API, at the same path as OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from parallax_core.api import InvalidRequest
from parallax_core.api.dialect import ResponseModel


class Support(ResponseModel):
    """Whether requests may ask for something."""

    supported: bool


class ContextEdits(Support):
    """Edits of the context."""

    clear_thinking_20251015: Support
    clear_tool_uses_20250919: Support
    compact_20260112: Support


class EffortLevels(Support):
    """The levels of ``output_config.effort``."""

    low: Support
    medium: Support
    high: Support
    xhigh: Support
    max: Support


class HostedTools(Support):
    """Tools that a server runs."""

    code_execution: Support
    web_search: Support


class ThinkingTypes(ResponseModel):
    """The types of ``thinking``, each of which is supported exactly if a request with it is not refused."""

    adaptive: Support
    between_tools: Support
    disabled: Support
    enabled: Support


class ThinkingSupport(Support):
    """Reasoning."""

    types: ThinkingTypes


class MessageModelCapabilities(ResponseModel):
    """What requests for a model may ask for."""

    batch: Support
    citations: Support
    code_execution: Support
    context_management: ContextEdits
    effort: EffortLevels
    image_input: Support
    pdf_input: Support
    server_tools: HostedTools
    structured_outputs: Support
    thinking: ThinkingSupport
    tools: Support
    """Anthropic's own form lacks it, since all its models have tools."""


class MessageModelReply(ResponseModel):
    """A model, in the form of Anthropic's API."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    """The start of the server, by RFC 3339."""
    lifecycle: Literal["active"]
    line: None
    deprecated_at: None
    retires_at: None
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


EFFORTS = ("low", "medium", "high", "xhigh", "max")
CONTEXT_EDITS = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")
NEVER = ("batch", "citations", "code_execution", "image_input", "pdf_input")
"""What no model here is able to do."""


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


def list_models(models: list[dict[str, Any]], page: ModelPage) -> dict[str, object]:
    """Return a page of models, which are in Anthropic's form.

    Raises:
        InvalidRequest: if the page begins at no model, or at two.
    """
    if page.after_id and page.before_id:
        raise InvalidRequest("'after_id' and 'before_id' ask for different pages: send only one of them", "before_id")
    models = models if page.has_active else []
    ids = [each["id"] for each in models]
    if page.before_id:
        end = _find_place(ids, page.before_id, "before_id")
        begin = max(0, end - page.limit)
        has_more = begin > 0
    else:
        begin = _find_place(ids, page.after_id, "after_id") + 1 if page.after_id else 0
        end = begin + page.limit
        has_more = end < len(ids)
    shown = ids[begin:end] or [None]
    return {"data": models[begin:end], "first_id": shown[0], "last_id": shown[-1], "has_more": has_more}


def _find_place(ids: list[str], name: str, field: str) -> int:
    if name not in ids:
        raise InvalidRequest(f"'{field}' is the id of no model", field)
    return ids.index(name)


def convert_model(model: Mapping[str, Any], *, limits_reasoning: bool) -> dict[str, Any]:
    """Return a model in Anthropic's form.

    Args:
        model: the same in OpenAI's form.
        limits_reasoning: whether requests for it may limit the reasoning.
    """
    length, able = model["max_model_len"], model["capabilities"]
    created = datetime.fromtimestamp(model["created"], UTC)
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
        "max_input_tokens": length,
        "max_tokens": length,
        "capabilities": _convert_capabilities(able, limits_reasoning=limits_reasoning) if able else None,
    }


def _convert_capabilities(able: list[str], *, limits_reasoning: bool) -> dict[str, Any]:
    no, reasons = {"supported": False}, {"supported": "reasoning" in able}
    types = {"adaptive": True, "between_tools": False, "disabled": True, "enabled": limits_reasoning}
    return {
        **dict.fromkeys(NEVER, no),
        "context_management": {**no, **dict.fromkeys(CONTEXT_EDITS, no)},
        "effort": {**reasons, **dict.fromkeys(EFFORTS, reasons)},
        "server_tools": {**no, "code_execution": no, "web_search": no},
        "structured_outputs": {"supported": "structured_output" in able},
        "thinking": {**reasons, "types": {name: {"supported": each} for name, each in types.items()}},
        "tools": {"supported": "tools" in able},
    }
