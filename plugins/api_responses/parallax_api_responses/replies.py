"""The schemas of responses and events of the Responses API, for ``/openapi.json`` and for tests."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from parallax_api_responses.input_models import PartStatus
from parallax_core.api.dialect import ResponseModel

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


class TextLogprob(ResponseModel):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TextLogprobs(TextLogprob):
    """A token of a text with its log-probability, and the most probable tokens at its place."""

    top_logprobs: list[TextLogprob]


class ResponseText(ResponseModel):
    """A text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[None]
    logprobs: list[TextLogprobs]
    """Of each token, if the client asked for them."""


class ResponseReasoningText(ResponseModel):
    """The text of the reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ResponseSummaryText(ResponseModel):
    """The text of a summary."""

    type: Literal["summary_text"]
    text: str


class ResponseMessage(ResponseModel):
    """A text for the reader."""

    type: Literal["message"]
    id: str
    status: PartStatus
    role: Literal["assistant"]
    content: list[ResponseText]


class ResponseReasoning(ResponseModel):
    """The reasoning before an answer."""

    type: Literal["reasoning"]
    id: str
    status: PartStatus
    summary: list[ResponseSummaryText]
    """The whole reasoning, if the client asked for a summary."""
    content: list[ResponseReasoningText] = Field(default_factory=list)
    """The reasoning, if the client did not ask for a summary."""
    encrypted_content: str = ""
    """The reasoning, encoded, if the client asked for that."""


class ResponseCall(ResponseModel):
    """A call of a function."""

    type: Literal["function_call"]
    id: str
    status: PartStatus
    call_id: str
    name: str
    namespace: str = ""
    """The namespace of the tool, if it has one."""
    arguments: str


class ResponseCustomCall(ResponseModel):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    id: str
    status: PartStatus
    call_id: str
    name: str
    namespace: str = ""
    """The namespace of the tool, if it has one."""
    input: str


ResponsePart = ResponseMessage | ResponseReasoning | ResponseCall | ResponseCustomCall


class InputDetails(ResponseModel):
    """Details of the prompt's tokens."""

    cached_tokens: int
    """Tokens that were not computed because the prefix cache had them."""
    cache_write_tokens: int
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


class ResponseFault(ResponseModel):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(ResponseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class EchoedReasoning(ResponseModel):
    """The ``reasoning`` of the request."""

    effort: str | None
    summary: str | None


class ResponsesReply(ResponseModel):
    """The answer to ``POST /v1/responses``."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    background: bool
    error: ResponseFault | None
    incomplete_details: IncompleteDetails | None
    output: list[ResponsePart]
    usage: ResponseUsage | None
    """Null until the answer has ended."""
    access_programs: None
    conversation: None
    frequency_penalty: float
    image: None
    input_transformations: None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    moderation: None
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt: None
    prompt_cache_diagnostics: None
    prompt_cache_key: str | None
    prompt_cache_options: None
    prompt_cache_retention: None
    reasoning: EchoedReasoning
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_usage: None
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class DeletedReply(ResponseModel):
    """The answer to ``DELETE /v1/responses/{response_id}``."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputListReply(ResponseModel):
    """The answer to ``GET /v1/responses/{response_id}/input_items``."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    """The parts, as the request had them, with an id and a status."""
    first_id: str
    last_id: str
    has_more: bool


class CompactedPart(ResponseModel):
    """The summary of a conversation."""

    type: Literal["compaction"]
    id: str
    encrypted_content: str
    """The summary, encoded."""


class CompactedReply(ResponseModel):
    """The answer to ``POST /v1/responses/compact``."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[CompactedPart]
    usage: ResponseUsage


class ResponseEvent(ResponseModel):
    """What every event of a stream has."""

    sequence_number: int
    """Counts the events from 0."""


class ResponseProgress(ResponseEvent):
    """The response at its beginning or its end."""

    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponsesReply

    @model_validator(mode="after")
    def check_status(self) -> Self:
        """Check that the status is that of the event."""
        kind = self.type.removeprefix("response.")
        allowed = {"created": {"queued", "in_progress"}, "incomplete": {"incomplete", "cancelled"}}.get(kind, {kind})
        if self.response.status not in allowed:
            raise ValueError(f"{self.type}: the status is {self.response.status}")
        return self


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
