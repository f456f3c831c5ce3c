"""The schemas of request bodies in Anthropic's Messages API; unsupported fields are refused by name."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from parallax_chat_requests.chat_messages import Parameters, Schema, ToolName
from parallax_chat_requests.fields import AnyStop, Copied, CountField, ShareField, Variables
from parallax_chat_requests.neutral_fields import Neutral, Tolerant
from parallax_core.api.bodies import VARIANT, Strict, TextField, refuse

MAX_MESSAGE_TOOLS, MAX_STOP_SEQUENCES = 1024, 64
"""The most tools and stop sequences; Anthropic's API states no limit."""
KEEPS_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
"""An edit of the context that removes nothing."""

NEUTRAL_PROMPT: Neutral = {
    "context_management": ({"edits": []}, {"edits": [KEEPS_THINKING]}),
    "mcp_servers": ([],),
    "speed": ("standard",),
}
"""Unsupported fields that concern the prompt, with the values that are accepted because they have no effect."""

NEUTRAL_MESSAGES: Neutral = {
    **NEUTRAL_PROMPT,
    "container": ("",),
    "diagnostics": (),
    "inference_geo": ("",),
    "output_format": (),
    "service_tier": ("auto", "standard_only"),
}
"""The same for a request for an answer."""


NEUTRAL_CALL: Neutral = {"caller": ({"type": "direct"},), "toolset_name": ()}
"""Fields of a call that say how the model made it, with the values that ours have."""

NEUTRAL_TOOL: Neutral = {"allowed_callers": (["direct"],), "defer_loading": (False,), "input_examples": ([],)}
"""Unsupported fields of a tool, with the values that have no effect."""

LONGEST_PIN_S = 3600.0
"""The longest time to live of a pin, in seconds."""
PIN_S = {None: 300.0, "5m": 300.0, "1h": LONGEST_PIN_S}
"""The time to live of a pin, in seconds, by its name."""


class CacheControl(Strict):
    """Marks the end of a prefix to be kept in the cache: the prompt that has one is pinned for its time."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Literal["global"] | None = None


class MessagePart(Strict):
    """A block of text."""

    type: Literal["text"]
    text: TextField
    cache_control: CacheControl | None = None
    citations: Annotated[list[None], Field(max_length=0)] | None = None
    parsed_output: Copied = None


class ThinkingPart(Strict):
    """Reasoning of an earlier answer; its signature is not checked."""

    type: Literal["thinking"]
    thinking: TextField
    signature: TextField | None = None


class RedactedPart(Strict):
    """Reasoning that only the service can read that wrote it: without effect."""

    type: Literal["redacted_thinking"]
    data: TextField


class ToolUsePart(Tolerant):
    """A tool call of an earlier answer."""

    neutral = NEUTRAL_CALL

    type: Literal["tool_use"]
    id: TextField
    name: TextField
    input: Schema
    cache_control: CacheControl | None = None


class ToolResultPart(Tolerant):
    """The result of a tool call."""

    neutral = {"toolset_name": ()}  # noqa: RUF012 -- as in every body

    type: Literal["tool_result"]
    tool_use_id: TextField
    content: TextField | Annotated[list[MessagePart], Field(fail_fast=True)] | None = None
    is_error: bool | None = None
    """Without effect: chat templates have no place for it."""
    cache_control: CacheControl | None = None


def _find_variant(part: object) -> str:
    return f"{VARIANT}{part.get('type') if isinstance(part, dict) else getattr(part, 'type', None)}"


AnyPart = Annotated[
    Annotated[MessagePart, Tag(f"{VARIANT}text")]
    | Annotated[ThinkingPart, Tag(f"{VARIANT}thinking")]
    | Annotated[RedactedPart, Tag(f"{VARIANT}redacted_thinking")]
    | Annotated[ToolUsePart, Tag(f"{VARIANT}tool_use")]
    | Annotated[ToolResultPart, Tag(f"{VARIANT}tool_result")],
    Discriminator(
        _find_variant,
        custom_error_type="unsupported_part",
        custom_error_message="blocks are supported of the types 'text', 'thinking', 'tool_use' and 'tool_result'",
    ),
]
System = TextField | Annotated[list[MessagePart], Field(fail_fast=True)]
PLACES: dict[type[Strict], str] = {
    ThinkingPart: "assistant",
    RedactedPart: "assistant",
    ToolUsePart: "assistant",
    ToolResultPart: "user",
}
"""The only role whose messages may have a part."""


class RequestMessage(Strict):
    """One turn of the conversation."""

    place = "messages."

    role: Literal["user", "assistant", "system"]
    content: TextField | Annotated[list[AnyPart], Field(fail_fast=True)]

    @model_validator(mode="after")
    def check_role(self) -> Self:
        """Check that the parts suit the role."""
        for part in self.parts:
            if PLACES.get(type(part), self.role) != self.role:
                message = f"'content' has a block of the type '{part.type}', which is only for another role"
                raise refuse("content", message)
        return self

    @property
    def parts(self) -> list[AnyPart]:
        """The parts of its content."""
        if isinstance(self.content, str):
            return [MessagePart(type="text", text=self.content)]
        return self.content


class Metadata(Strict):
    """Labels without effect on the answer."""

    place = "metadata."

    user_id: TextField | None = None


class MessageTool(Tolerant):
    """A tool that the model may call."""

    place = "tools."
    neutral = NEUTRAL_TOOL

    type: Literal["custom"] | None = None
    name: ToolName
    description: TextField | None = None
    input_schema: Parameters
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    """Without effect: arguments are always streamed as they are generated."""
    strict: bool | None = None
    """Whether arguments must follow the schema; those of a call forced by ``tool_choice`` always do."""


def _read_empty(name: object) -> object:
    """Return nothing for a name without letters."""
    return None if name == "" else name


class MessageToolChoice(Strict):
    """How the model uses tools."""

    place = "tool_choice."

    type: Literal["any", "auto", "none", "tool"]
    name: Annotated[ToolName | None, BeforeValidator(_read_empty)] = None
    disable_parallel_tool_use: bool | None = None

    @property
    def forces(self) -> bool:
        """Whether the answer has to be a call."""
        return self.type in {"any", "tool"}

    @model_validator(mode="after")
    def check_name(self) -> Self:
        """Check that a tool is named if and only if the type is for one."""
        if (self.name is None) == (self.type == "tool"):
            raise refuse("name", "'tool_choice.name' is for the type 'tool', which needs it")
        return self


class OutputFormat(Strict):
    """The form of the answer."""

    place = "output_config.format."

    type: Literal["json_schema"]
    schema_: Variables = Field(alias="schema")

    @classmethod
    def list_known(cls) -> list[str]:
        """Return the names of the known fields."""
        return ["type", "schema"]


class OutputConfig(Strict):
    """How the answer is written."""

    place = "output_config."

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Thinking(Strict):
    """Whether the model reasons, and for how long."""

    place = "thinking."

    type: Literal["adaptive", "disabled", "enabled"]
    budget_tokens: CountField | None = None
    display: Literal["summarized"] | None = None
    """Without effect: reasoning is always sent whole."""

    @model_validator(mode="after")
    def check_budget(self) -> Self:
        """Check that there is a budget if it is needed, and none if it contradicts the type."""
        if self.type == "enabled" and self.budget_tokens is None:
            raise refuse("budget_tokens", "'budget_tokens' is missing: the type 'enabled' needs it")
        if self.type == "disabled" and self.budget_tokens is not None:
            raise refuse("budget_tokens", "'budget_tokens' is not for the type 'disabled': leave it out")
        return self


class CountTokensRequest(Tolerant):
    """The body of ``POST /v1/messages/count_tokens``: the fields of a request that its prompt is made of."""

    neutral = NEUTRAL_PROMPT

    model: TextField | None = None
    """A name of a model served; another gets a 404. Without it, the only model answers, or the one loaded first."""
    messages: Annotated[list[RequestMessage], Field(min_length=1, fail_fast=True)]
    """Turns with ``role`` (``user``, ``assistant``, ``system``) and ``content`` (a string, or blocks of the types
    ``text``, ``thinking``, ``tool_use`` and ``tool_result``). Neighbours of the same role are joined; the answer
    continues a last turn of the role ``assistant``."""
    system: System | None = None
    """The system prompt: a string, or blocks of type ``text``."""
    cache_control: CacheControl | None = None
    """Here or on any block: keep the prompt in the prefix cache for 5 minutes, or with ``ttl`` for ``1h``."""
    tools: Annotated[list[MessageTool], Field(max_length=MAX_MESSAGE_TOOLS, fail_fast=True)] | None = None
    """Up to 1024 tools that the model may call, with ``name``, ``description`` and ``input_schema``."""
    tool_choice: MessageToolChoice | None = None
    """``type``: ``auto``, the default, lets the model choose; ``any``, or ``tool`` with the ``name`` of one, forces a
    call, whose input follows the schema; ``none`` hides the tools from the model. ``disable_parallel_tool_use`` keeps
    only the first call of an answer."""
    output_config: OutputConfig | None = None
    """``format``: ``{"type": "json_schema", "schema": SCHEMA}`` has the answer match a JSON schema. ``effort``: how
    much the model may reason, if its chat template has such a setting; where it can only be turned on or off, it is
    on. Without effect on a model that does not reason."""
    thinking: Thinking | None = None
    """``type``: ``enabled`` lets the model reason for at most ``budget_tokens`` tokens, ``disabled`` turns reasoning
    off, and ``adaptive``, the default, leaves it to the model, within ``budget_tokens`` if there are any. A model that
    does not reason answers without it."""

    @model_validator(mode="after")
    def check_tools(self) -> Self:
        """Refuse tools that contradict each other, the choice or the form of the answer."""
        names, choice = [tool.name for tool in self.tools or ()], self.tool_choice
        if len(set(names)) < len(names):
            raise refuse("tools", "'tools' has two tools of the same name")
        if choice and choice.forces and not ({choice.name} & {*names} if choice.name else names):
            raise refuse("tool_choice", "'tool_choice' forces a call of a tool that is not in 'tools'")
        return self

    @property
    def pin_s(self) -> float | None:
        """The longest time, in seconds, for which a mark asks to keep the prompt; None: there is no mark."""
        marks = [self.cache_control, *(tool.cache_control for tool in self.tools or ())]
        marks += [part.cache_control for part in self.system or () if isinstance(part, MessagePart)]
        for part in (part for message in self.messages for part in message.parts):
            marks.append(getattr(part, "cache_control", None))
            if isinstance(part, ToolResultPart) and isinstance(part.content, list):
                marks += [each.cache_control for each in part.content]
        return max((PIN_S[mark.ttl] for mark in marks if mark), default=None)

    @property
    def answer_format(self) -> OutputFormat | None:
        """The form of the answer, if it is given."""
        return self.output_config.format if self.output_config else None

    @property
    def continues_last(self) -> bool:
        """Whether the answer continues the last turn."""
        return self.messages[-1].role == "assistant"


class MessagesRequest(CountTokensRequest):
    """The body of ``POST /v1/messages``."""

    neutral = NEUTRAL_MESSAGES

    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)]
    """The largest number of tokens of the answer; if the context holds fewer, the answer ends there, and its
    ``stop_reason`` is ``model_context_window_exceeded``. 0 only computes the prompt, for the prefix cache."""
    stop_sequences: Annotated[list[AnyStop], Field(max_length=MAX_STOP_SEQUENCES)] | None = None
    """Up to 64 strings; the answer ends before the first of them. An empty one has no effect."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """0 to 2; 0, like anything below a millionth, always takes the most probable token."""
    top_p: ShareField | None = None
    """Keep the most probable tokens whose probabilities sum to at least this; 0 to 1, and 0 keeps one."""
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Keep the k most probable tokens; 0 keeps all."""
    stream: bool | None = None
    """Send the answer as server-sent events, as it is generated."""
    metadata: Metadata | None = None
    """``user_id``: a label for the client's own use, without effect on the answer."""
