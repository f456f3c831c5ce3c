"""The schema of the body of ``POST /v1/responses``; unsupported fields are refused by name."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from parallax_api_responses.input_models import InputMessage, InputParts, find_type
from parallax_api_responses.tool_models import (
    AllowedTools,
    AnyChoice,
    AnyTools,
    PlacedTool,
    ToolPick,
    check_tools,
    list_tools,
)
from parallax_chat_requests.chat_messages import Schema
from parallax_chat_requests.fields import ClientLabels, CountField, Identifier, Labels, Top, Variables
from parallax_chat_requests.neutral_fields import Neutral, Tolerant
from parallax_chat_requests.request_models import Sampled
from parallax_chat_requests.structured_output import SchemaName
from parallax_core.api.bodies import VARIANT, Strict, TextField, refuse

NEUTRAL_RESPONSES: Neutral = {
    "access_programs": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": ({}, {"mode": "implicit"}),
    "prompt_cache_retention": ("in_memory",),
    "service_tier": ("auto", "default"),
    "truncation": ("disabled",),
}
"""Unsupported fields, with the values that are accepted because they have no effect."""

Included = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""OpenAI's values of ``include``; those of hosted tools and images have no effect, since no response has any."""
COMPACT_PROMPT = (
    "Summarize this conversation, so that it can go on from your summary alone: what the user wants, what was done and "
    "found, with all names, paths and numbers that matter, and what remains to be done. Answer with the summary only."
)
"""The last message of a conversation that is to be compacted."""
ENCRYPTED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"


class AnyTextFormat(Strict):
    """Any text, or any JSON object."""

    place = "text.format."

    type: Literal["text", "json_object"]


class SchemaFormat(Strict):
    """JSON that matches a schema."""

    model_config = ConfigDict(serialize_by_alias=True)
    place = "text.format."

    type: Literal["json_schema"]
    name: SchemaName
    schema_: Schema = Field(alias="schema")
    description: TextField | None = None
    """For the client's own use: models are not shown it."""
    strict: bool | None = None
    """Accepted for compatibility: answers always match the schema."""

    @classmethod
    def list_known(cls) -> list[str]:
        """Return the names of the known fields."""
        return ["type", "name", "schema", "description", "strict"]


class TextOptions(Tolerant):
    """The form of the text of an answer."""

    place = "text."
    neutral = {"verbosity": ("medium",)}  # noqa: RUF012 -- as in every body

    format: (
        Annotated[
            Annotated[AnyTextFormat, Tag(f"{VARIANT}text")]
            | Annotated[AnyTextFormat, Tag(f"{VARIANT}json_object")]
            | Annotated[SchemaFormat, Tag(f"{VARIANT}json_schema")],
            Discriminator(
                find_type,
                custom_error_type="unsupported_format",
                custom_error_message="supported are 'text', 'json_object' and 'json_schema'",
            ),
        ]
        | None
    ) = None


class ReasoningOptions(Tolerant):
    """How much the model reasons, and how its reasoning is sent."""

    place = "reasoning."
    neutral = {"context": ("auto",), "mode": ("standard",)}  # noqa: RUF012 -- as in every body

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """The older name of ``summary``."""


class ResponsesStreamOptions(Tolerant):
    """Options that only matter when streaming."""

    place = "stream_options."
    neutral = {"include_obfuscation": (False,)}  # noqa: RUF012 -- as in every body


class ResponsesRequest(Sampled):
    """The body of ``POST /v1/responses``."""

    neutral = NEUTRAL_RESPONSES

    input: TextField | InputParts
    """A text, or the parts of a conversation: messages with ``role`` (``system``, ``developer``, ``user``,
    ``assistant``) and ``content`` (a string, or parts of type ``input_text`` or ``output_text``), and what earlier
    answers contained, as the server sent it, with the results of their calls. A last message of the ``assistant`` with
    the ``status`` ``incomplete`` or ``in_progress`` is continued: the answer has what comes after it."""
    instructions: TextField | None = None
    """A system message before the input."""
    max_output_tokens: CountField | None = None
    """The largest number of tokens of the answer, its reasoning included."""
    top_logprobs: Top | None = None
    """The number of most probable tokens to return at each position; 0 to 20."""
    include: Annotated[list[Included], Field(max_length=32)] | None = None
    """``message.output_text.logprobs``: return the log-probability of each token of the text;
    ``reasoning.encrypted_content``: return the reasoning in a form that a later request can send back as it is (it is
    encoded, not encrypted). OpenAI's other values have no effect."""
    stream_options: ResponsesStreamOptions | None = None
    """``include_obfuscation``: only false."""
    text: TextOptions | None = None
    """``format``: the form of the answer: ``{"type": "text"}``, ``{"type": "json_object"}``, or ``{"type":
    "json_schema", "name": NAME, "schema": SCHEMA}``."""
    tools: AnyTools | None = None
    """Up to 128 tools that the model may call, of the types ``function``, ``custom`` (its input is text) and
    ``namespace`` (several tools of one name)."""
    tool_choice: AnyChoice | None = None
    """``auto``, the default with ``tools``, lets the model choose; ``required`` or a named tool forces a call, whose
    arguments follow the schema or the grammar; ``none`` hides the tools from the model; ``allowed_tools`` shows it only
    some."""
    parallel_tool_calls: bool | None = None
    """False keeps only the first call of an answer; true by default."""
    max_tool_calls: CountField | None = None
    """Without effect: it limits calls of hosted tools, which this server does not have."""
    reasoning: ReasoningOptions | None = None
    """``effort``: how much the model reasons, if its chat template has such a setting; where it can only be turned on
    or off, ``none`` turns it off. ``summary``: send the reasoning as the summary, whole, since models write none."""
    metadata: Labels | None = None
    """Up to 16 labels for the client's own use, without effect on the answer; names of up to 64 characters, values of
    up to 512."""
    client_metadata: ClientLabels | None = None
    """The same, from Codex; they are not returned."""
    safety_identifier: Identifier | None = None
    """The newer name of ``user``, of up to 128 characters."""
    prompt_cache_key: TextField | None = None
    """A label without effect: all prompts of a client share its prefix cache; see ``cache_salt``."""
    previous_response_id: Annotated[TextField, Field(min_length=1, max_length=256)] | None = None
    """The id of a kept response of the same key, whose input and output come before ``input``."""
    store: bool | None = None
    """Keep the response, so that it can be retrieved and continued; true by default, unless the server keeps none."""
    background: bool | None = None
    """Generate the response whether the client listens or not; only for a response that is kept."""
    chat_template_kwargs: Variables | None = None
    """Up to 256 further variables for the model's chat template."""
    max_reasoning_tokens: CountField | None = None
    """The largest number of tokens of the reasoning: after them the server ends it, and the model begins its answer.
    Without effect on a model that does not reason."""

    @model_validator(mode="after")
    def check_together(self) -> Self:
        """Check that the fields do not contradict each other."""
        if not self.input:
            raise refuse("input", "'input' is empty")
        if self.stream_options is not None and not self.stream:
            raise refuse("stream_options", "'stream_options' is only for requests with 'stream': true")
        if self.background and self.store is False:
            raise refuse("background", "'background' is only for responses that are kept: leave 'store' out")
        check_tools(self.placed_tools, self.tool_choice)
        if self.continues_last and (self.requires_call or self.forced_tool or self.asks_for_form):
            message = "'input' ends with an incomplete message, which 'text.format' and forced calls cannot continue"
            raise refuse("input", message)
        return self

    @property
    def continues_last(self) -> bool:
        """Whether the answer continues the last message."""
        last = None if isinstance(self.input, str) else self.input[-1]
        if not isinstance(last, InputMessage) or last.role != "assistant":
            return False
        return last.status in {"incomplete", "in_progress"}

    @property
    def asks_for_form(self) -> bool:
        """Whether the answer has to be JSON."""
        return self.text is not None and self.text.format is not None and self.text.format.type != "text"

    @property
    def placed_tools(self) -> list[PlacedTool]:
        """All tools."""
        return list(list_tools(self.tools or ()))

    @property
    def offered_tools(self) -> list[PlacedTool]:
        """The tools that the model may call."""
        if self.tool_choice == "none":
            return []
        if isinstance(self.tool_choice, AllowedTools):
            picks = self.tool_choice.tools
            return [tool for tool in self.placed_tools if any(tool.is_picked(pick) for pick in picks)]
        return self.placed_tools

    @property
    def forced_tool(self) -> PlacedTool | None:
        """The tool that the answer has to call, if it is a certain one."""
        pick = self.tool_choice
        if not isinstance(pick, ToolPick):
            return None
        return next(tool for tool in self.placed_tools if tool.is_picked(pick))

    @property
    def requires_call(self) -> bool:
        """Whether the answer has to call some tool."""
        choice = self.tool_choice
        return (choice.mode if isinstance(choice, AllowedTools) else choice) == "required"

    @property
    def summarizes(self) -> bool:
        """Whether the reasoning is sent as its summary."""
        return self.reasoning is not None and bool(self.reasoning.summary or self.reasoning.generate_summary)

    def includes(self, name: str) -> bool:
        """Return whether the client asked for a value of ``include``."""
        return name in (self.include or ())


class CompactRequest(Tolerant):
    """The body of ``POST /v1/responses/compact``."""

    neutral = {  # noqa: RUF012 -- as in every body
        name: NEUTRAL_RESPONSES[name]
        for name in ("image", "prompt_cache_options", "prompt_cache_retention", "service_tier")
    }

    model: TextField | None = None
    """A name of a model served; another gets a 404. Without it, the only model answers, or the one loaded first."""
    input: TextField | InputParts | None = None
    """The conversation, as in a request for a response."""
    instructions: TextField | None = None
    """A system message before the input."""
    previous_response_id: Annotated[TextField, Field(min_length=1, max_length=256)] | None = None
    """The id of a kept response of the same key, whose conversation comes before ``input``."""
    prompt_cache_key: TextField | None = None
    """A label without effect."""

    @model_validator(mode="after")
    def check_input(self) -> Self:
        """Check that there is a conversation."""
        if not self.input and self.previous_response_id is None:
            raise refuse("input", "'input' is empty")
        return self

    def as_request(self) -> ResponsesRequest:
        """Return the request for a summary."""
        given = self.input or []
        parts = [InputMessage.model_construct(role="user", content=given)] if isinstance(given, str) else given
        return ResponsesRequest.model_construct(
            model=self.model,
            input=[*parts, InputMessage.model_construct(role="user", content=COMPACT_PROMPT)],
            instructions=self.instructions,
            previous_response_id=self.previous_response_id,
            store=False,
        )
