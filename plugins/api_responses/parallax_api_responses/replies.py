"""The objects of the Responses API, from which answers are written and described."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from parallax_api_responses.input_models import PartStatus
from parallax_core.api.bodies import ResponseModel

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


class TextLogprob(ResponseModel):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TextLogprobs(TextLogprob):
    """A token of a text with its log-probability, and the most probable tokens at its place."""

    top_logprobs: list[TextLogprob]


class ResponseText(ResponseModel, kw_only=True, tag_field="type", tag="output_text"):
    """A text of a message."""

    text: str
    annotations: list[None] = field(default_factory=list)
    logprobs: list[TextLogprobs]
    """Of each token, if the client asked for them."""


class ResponseReasoningText(ResponseModel, tag_field="type", tag="reasoning_text"):
    """The text of the reasoning."""

    text: str


class ResponseSummaryText(ResponseModel, tag_field="type", tag="summary_text"):
    """The text of a summary."""

    text: str


class ResponseMessage(ResponseModel, kw_only=True, tag_field="type", tag="message"):
    """A text for the reader."""

    id: str
    status: PartStatus
    role: Literal["assistant"] = "assistant"
    content: list[ResponseText]


class ResponseReasoning(ResponseModel, kw_only=True, tag_field="type", tag="reasoning"):
    """The reasoning before an answer."""

    id: str
    status: PartStatus
    encrypted_content: str | UnsetType = UNSET
    """The reasoning, encoded, if the client asked for that."""
    summary: list[ResponseSummaryText] = field(default_factory=list)
    """The whole reasoning, if the client asked for a summary."""
    content: list[ResponseReasoningText] | UnsetType = UNSET
    """The reasoning, if the client did not ask for a summary."""


class ResponseCall(ResponseModel, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    status: PartStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    """The namespace of the tool, if it has one."""
    arguments: str


class ResponseCustomCall(ResponseModel, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool."""

    id: str
    status: PartStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    """The namespace of the tool, if it has one."""
    input: str


ResponsePart = ResponseMessage | ResponseReasoning | ResponseCall | ResponseCustomCall


class InputDetails(ResponseModel):
    """Details of the prompt's tokens."""

    cached_tokens: int
    """Tokens that were not computed because the prefix cache had them."""
    cache_write_tokens: int = 0
    """Always 0: prompts are cached without being asked for."""


class ReasoningDetails(ResponseModel):
    """Details of the answer's tokens."""

    reasoning_tokens: int


class ResponseUsage(ResponseModel):
    """The token counts of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningDetails
    total_tokens: int


FaultCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]


class ResponseFault(ResponseModel):
    """Why a response failed."""

    code: FaultCode
    message: str


class IncompleteDetails(ResponseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class EchoedReasoning(ResponseModel):
    """The ``reasoning`` of the request."""

    effort: str | None
    summary: str | None


class ResponsesReply(ResponseModel, kw_only=True):
    """The answer to ``POST /v1/responses``."""

    id: str = ""
    object: Literal["response"] = "response"
    created_at: int = 0
    status: ResponseStatus = "in_progress"
    background: bool
    completed_at: int | None = None
    error: ResponseFault | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[ResponsePart] = field(default_factory=list)
    usage: ResponseUsage | None = None
    """Null until the answer has ended."""
    access_programs: None = None
    conversation: None = None
    image: None = None
    input_transformations: None = None
    moderation: None = None
    prompt: None = None
    prompt_cache_diagnostics: None = None
    prompt_cache_options: None = None
    prompt_cache_retention: None = None
    tool_usage: None = None
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: EchoedReasoning
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    user: str | None
    store: bool


class DeletedReply(ResponseModel):
    """The answer to ``DELETE /v1/responses/{response_id}``."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputListReply(ResponseModel, kw_only=True):
    """The answer to ``GET /v1/responses/{response_id}/input_items``."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    """The parts, as the request had them, with an id and a status."""
    first_id: str
    last_id: str
    has_more: bool


class CompactedPart(ResponseModel, tag_field="type", tag="compaction"):
    """The summary of a conversation."""

    id: str
    encrypted_content: str
    """The summary, encoded."""


class CompactedReply(ResponseModel, kw_only=True):
    """The answer to ``POST /v1/responses/compact``."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[CompactedPart]
    usage: ResponseUsage


class TypedEvent(ResponseModel):
    """What every event of a stream has first."""

    type: str


class ResponseEvent(TypedEvent, kw_only=True):
    """What every event of a stream has, with its number at the end."""

    sequence_number: int = 0
    """Counts the events from 0."""


ProgressKind = Literal[
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]


class ResponseProgress(ResponseEvent):
    """The response at its beginning or its end."""

    type: ProgressKind
    response: ResponsesReply


class ResponsePartEvent(ResponseEvent):
    """The beginning or the end of a part of the output."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: ResponsePart


class PlacedEvent(ResponseEvent):
    """An event of a part of the output."""

    item_id: str
    output_index: int


class ResponseContentEvent(PlacedEvent):
    """The beginning or the end of the text of a message or of the reasoning."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: ResponseText | ResponseReasoningText


class ResponseTextDelta(PlacedEvent):
    """The next piece of a text."""

    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[TextLogprobs]


class ResponseTextDone(PlacedEvent):
    """The whole text."""

    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[TextLogprobs]


class ResponseReasoningDelta(PlacedEvent):
    """The next piece of the reasoning."""

    type: Literal["response.reasoning_text.delta"]
    content_index: int
    delta: str


class ResponseReasoningDone(PlacedEvent):
    """The whole reasoning."""

    type: Literal["response.reasoning_text.done"]
    content_index: int
    text: str


class ResponseSummaryPart(PlacedEvent):
    """The beginning or the end of a summary."""

    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    summary_index: int
    part: ResponseSummaryText


class ResponseSummaryDelta(PlacedEvent):
    """The next piece of a summary."""

    type: Literal["response.reasoning_summary_text.delta"]
    summary_index: int
    delta: str


class ResponseSummaryDone(PlacedEvent):
    """The whole summary."""

    type: Literal["response.reasoning_summary_text.done"]
    summary_index: int
    text: str


class ResponseCallDelta(PlacedEvent):
    """The next piece of the arguments of a function, or of the input of a custom tool."""

    type: Literal["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"]
    delta: str


class ResponseArgumentsDone(PlacedEvent):
    """The arguments of a function."""

    type: Literal["response.function_call_arguments.done"]
    arguments: str


class ResponseInputDone(PlacedEvent):
    """The input of a custom tool."""

    type: Literal["response.custom_tool_call_input.done"]
    input: str


AnyResponseEvent = (
    ResponseProgress
    | ResponsePartEvent
    | ResponseContentEvent
    | ResponseTextDelta
    | ResponseTextDone
    | ResponseReasoningDelta
    | ResponseReasoningDone
    | ResponseSummaryPart
    | ResponseSummaryDelta
    | ResponseSummaryDone
    | ResponseCallDelta
    | ResponseArgumentsDone
    | ResponseInputDone
)
"""An event of a stream."""
