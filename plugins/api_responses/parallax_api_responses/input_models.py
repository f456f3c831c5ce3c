"""The schemas of the ``input`` of the Responses API: messages, reasoning, tool calls, results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag

from parallax_chat_requests.fields import Copied
from parallax_chat_requests.neutral_fields import Neutral, Tolerant
from parallax_core.api import InvalidRequest
from parallax_core.api.bodies import VARIANT, Strict, TextField

MAX_INPUT = 100_000
"""The most parts of an input."""

NEUTRAL_CALL: Neutral = {"caller": ({"type": "direct"},), "async": (False,), "async_": (False,), "created_by": ()}
"""Fields of calls and results that this server does not send, with the values that mean nothing."""

PartStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(Tolerant):
    """A text from the client."""

    place = "input.content."
    neutral = {"prompt_cache_breakpoint": ()}  # noqa: RUF012 -- as in every body

    type: Literal["input_text"]
    text: TextField


class AnsweredText(Strict):
    """A text of an earlier answer."""

    place = "input.content."

    type: Literal["output_text"]
    text: TextField
    annotations: list[Any] | None = Field(default=None, exclude=True)
    """Citations, which the model is not shown."""
    logprobs: list[Any] | None = Field(default=None, exclude=True)
    """Log-probabilities, which the model is not shown."""
    parsed: Copied = None


class AnsweredRefusal(Strict):
    """A refusal of an earlier answer."""

    place = "input.content."

    type: Literal["refusal"]
    refusal: TextField

    @property
    def text(self) -> str:
        """Its text."""
        return self.refusal


def find_type(part: object) -> str:
    """Return the tag of a part; one without a type is a message if it has a role, else a reference if it has an id."""
    if isinstance(part, PartReference):
        return f"{VARIANT}item_reference"
    if not isinstance(part, dict):
        return f"{VARIANT}{getattr(part, 'type', None) or 'message'}"
    kind = part.get("type")
    if kind is None:
        kind = "message" if "role" in part else "item_reference" if "id" in part else None
    return f"{VARIANT}{kind}"


AnyInputText = Annotated[
    Annotated[InputText, Tag(f"{VARIANT}input_text")]
    | Annotated[AnsweredText, Tag(f"{VARIANT}output_text")]
    | Annotated[AnsweredRefusal, Tag(f"{VARIANT}refusal")],
    Discriminator(
        find_type,
        custom_error_type="unsupported_part",
        custom_error_message="content is supported of the types 'input_text', 'output_text' and 'refusal'",
    ),
]
MessageTexts = Annotated[list[AnyInputText], Field(fail_fast=True)]
ResultTexts = Annotated[list[InputText], Field(fail_fast=True)]


class InputMessage(Tolerant):
    """A turn of the conversation."""

    place = "input."
    neutral = {"phase": ("commentary", "final_answer")}  # noqa: RUF012 -- as in every body

    type: Literal["message"] | None = None
    role: Literal["user", "system", "developer", "assistant"]
    content: TextField | MessageTexts
    id: TextField | None = None
    status: PartStatus | None = None

    @property
    def text(self) -> str:
        """Its text."""
        return join_texts(self.content)


class SummaryText(Strict):
    """A text of a summary."""

    place = "input.summary."

    type: Literal["summary_text"]
    text: TextField


class ReasoningText(Strict):
    """A text of reasoning."""

    place = "input.content."

    type: Literal["reasoning_text", "text"]
    text: TextField


class InputReasoning(Strict):
    """The reasoning of an earlier answer."""

    place = "input."

    type: Literal["reasoning"]
    summary: Annotated[list[SummaryText], Field(fail_fast=True)] | None = None
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] | None = None
    encrypted_content: TextField | None = None
    id: TextField | None = None
    status: PartStatus | None = None


class InputCall(Tolerant):
    """A function call of an earlier answer."""

    place = "input."
    neutral = NEUTRAL_CALL

    type: Literal["function_call"]
    call_id: TextField
    name: TextField
    arguments: TextField
    namespace: TextField | None = None
    parsed_arguments: Copied = None
    id: TextField | None = None
    status: PartStatus | None = None


class InputCustomCall(Tolerant):
    """A call of a custom tool in an earlier answer."""

    place = "input."
    neutral = NEUTRAL_CALL

    type: Literal["custom_tool_call"]
    call_id: TextField
    name: TextField
    input: TextField
    namespace: TextField | None = None
    id: TextField | None = None
    status: PartStatus | None = None


class InputResult(Tolerant):
    """The result of a call."""

    place = "input."
    neutral = NEUTRAL_CALL

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: TextField
    output: TextField | ResultTexts
    name: TextField | None = None
    namespace: TextField | None = None
    id: TextField | None = None
    status: PartStatus | None = None

    @property
    def text(self) -> str:
        """Its text."""
        return join_texts(self.output)


class InputCompaction(Tolerant):
    """The summary that stands for the conversation before it."""

    place = "input."
    neutral = NEUTRAL_CALL

    type: Literal["compaction", "compaction_summary"]
    encrypted_content: TextField
    id: TextField | None = None
    status: PartStatus | None = None


class PartReference(Strict):
    """An item of a kept response of the same key, which the server puts in its place."""

    place = "input."

    type: Literal["item_reference"] | None = None
    id: Annotated[TextField, Field(min_length=1, max_length=256)]


InputPart = Annotated[
    Annotated[InputMessage, Tag(f"{VARIANT}message")]
    | Annotated[InputReasoning, Tag(f"{VARIANT}reasoning")]
    | Annotated[InputCall, Tag(f"{VARIANT}function_call")]
    | Annotated[InputCustomCall, Tag(f"{VARIANT}custom_tool_call")]
    | Annotated[InputResult, Tag(f"{VARIANT}function_call_output")]
    | Annotated[InputResult, Tag(f"{VARIANT}custom_tool_call_output")]
    | Annotated[InputCompaction, Tag(f"{VARIANT}compaction")]
    | Annotated[InputCompaction, Tag(f"{VARIANT}compaction_summary")]
    | Annotated[PartReference, Tag(f"{VARIANT}item_reference")],
    Discriminator(
        find_type,
        custom_error_type="unsupported_part",
        custom_error_message=(
            "input is supported of the types 'message', 'reasoning', 'function_call', 'function_call_output', "
            "'custom_tool_call', 'custom_tool_call_output', 'compaction' and 'item_reference'"
        ),
    ),
]
InputParts = Annotated[list[InputPart], Field(max_length=MAX_INPUT, fail_fast=True)]


def list_references(parts: str | Sequence[Strict]) -> tuple[str, ...]:
    """Return the ids of the items that an input refers to.

    Raises:
        InvalidRequest: if it refers to one twice: a short body could stand for a prompt without limit.
    """
    names = [part.id for part in parts if isinstance(part, PartReference)]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        message = f"'input' refers twice to the item '{twice[:100]}'"
        raise InvalidRequest(message, "input", "leave one of them out")
    return tuple(names)


def join_texts(content: str | Sequence[Strict]) -> str:
    """Return the text of a string or of parts, each on a line of its own."""
    if isinstance(content, str):
        return content
    return "\n".join(cast("Any", part).text for part in content)
