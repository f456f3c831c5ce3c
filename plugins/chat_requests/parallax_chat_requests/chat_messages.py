"""The schemas of the messages and tools of a chat request."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from parallax_chat_requests.fields import Copied, check_variables
from parallax_chat_requests.neutral_fields import Neutral, Tolerant
from parallax_core.api.bodies import VARIANT, Arguments, Strict, TextField, refuse

MAX_TOOLS = 128
"""The most tools of a request in OpenAI's API."""

NEUTRAL_TURN: Neutral = {
    "images": ([],),
    "provider_specific_fields": ({},),
    "reasoning_details": ([],),
    "thinking_blocks": ([],),
}
"""Fields that client libraries add to our answers and send back, with the values that mean nothing."""

Schema = Annotated[dict[TextField, Any], AfterValidator(check_variables)]
"""A JSON Schema, or any object."""


def _check_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse what is no schema of an object."""
    kind = schema.get("type", "object")
    is_object = kind == "object" or (isinstance(kind, list) and "object" in kind)
    fields, needed = schema.get("properties"), schema.get("required")
    if not (
        is_object and (fields is None or isinstance(fields, dict)) and (needed is None or isinstance(needed, list))
    ):
        message = "must be a JSON Schema of the type 'object', with an object as 'properties' and a list as 'required'"
        raise ValueError(message)
    return schema


Parameters = Annotated[Schema, AfterValidator(_check_parameters)]
"""The JSON Schema of the arguments of a tool."""
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class TextPart(Strict):
    """One part of a message's content."""

    place = "messages.content."

    type: Literal["text"]
    text: TextField

    @model_validator(mode="before")
    @classmethod
    def read_refusal(cls, part: Any) -> Any:  # noqa: ANN401 -- whatever the client sent
        """Take the text of a refusal, as an earlier answer may have it, for text."""
        is_refusal = isinstance(part, dict) and part.keys() == {"type", "refusal"} and part["type"] == "refusal"
        return {"type": "text", "text": part["refusal"]} if is_refusal else part


ContentField = TextField | Annotated[list[TextPart], Field(fail_fast=True)]


class CalledFunction(Strict):
    """The function that an earlier answer called."""

    place = "messages.tool_calls.function."

    name: TextField
    arguments: TextField
    parsed_arguments: Copied = None

    def as_template_value(self) -> dict[str, Any]:
        """Return it in the form of chat templates, which want the arguments as an object if they are one."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        is_object = isinstance(arguments, dict)
        return {"name": self.name, "arguments": Arguments(arguments) if is_object else self.arguments}


class RequestToolCall(Strict):
    """A tool call of an earlier answer."""

    place = "messages.tool_calls."

    id: TextField
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None
    """The number of the call, as in a stream; without effect."""


class ChatRequestMessage(Tolerant):
    """One turn of the conversation."""

    place = "messages."
    neutral = NEUTRAL_TURN

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: ContentField | None = None
    name: TextField | None = None
    """The name of the participant, for templates that show it."""
    tool_call_id: TextField | None = None
    """The call that a message of the role ``tool`` answers."""
    tool_calls: Annotated[list[RequestToolCall], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """The calls of an ``assistant``."""
    reasoning_content: TextField | None = None
    """The reasoning of an ``assistant``, for templates that show it."""
    reasoning: TextField | None = None
    """Another name of ``reasoning_content``."""
    refusal: TextField | None = None
    """Why an ``assistant`` refused, in place of its content."""
    annotations: Annotated[list[None], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    parsed: Copied = None

    @model_validator(mode="after")
    def check_role(self) -> Self:
        """Check that the fields suit the role."""
        if self.content is None and self.role != "assistant":
            raise refuse("content", f"'content' is missing in a message of the role '{self.role}'")
        if self.tool_calls is not None and self.role != "assistant":
            raise refuse("tool_calls", "'tool_calls' is only for messages of the role 'assistant'")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise refuse("tool_call_id", "'tool_call_id' is for messages of the role 'tool', which need it")
        return self

    def as_turn(self) -> dict[str, Any]:
        """Return the turn in the form of chat templates; ``developer`` is OpenAI's newer name of ``system``."""
        turn: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self._text}
        optional = {"name": self.name, "tool_call_id": self.tool_call_id, "tool_calls": self._calls}
        optional["reasoning_content"] = self.reasoning_content or self.reasoning
        return {**turn, **{name: value for name, value in optional.items() if value}}

    @property
    def _text(self) -> str | None:
        if self.content is None and not self.tool_calls:
            return self.refusal or ""  # Templates print the content of a turn without calls, also where it is none.
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content

    @property
    def _calls(self) -> list[dict[str, Any]]:
        calls = self.tool_calls or ()
        return [{"id": call.id, "type": "function", "function": call.function.as_template_value()} for call in calls]


Messages = Annotated[list[ChatRequestMessage], Field(min_length=1, fail_fast=True)]


class Function(Strict):
    """A function that the model may call."""

    place = "tools.function."

    name: ToolName
    description: TextField | None = None
    parameters: Parameters | None = None
    """The JSON Schema of its arguments, an object."""
    strict: bool | None = None
    """Whether arguments must follow the schema; those of a call forced by ``tool_choice`` always do."""


class Tool(Strict):
    """A tool that the model may call."""

    place = "tools."

    type: Literal["function"]
    function: Function

    def as_template_value(self) -> dict[str, Any]:
        """Return it in the form of chat templates."""
        function = self.function
        found = {"name": function.name, "description": function.description, "parameters": function.parameters}
        return {"type": "function", "function": {name: value for name, value in found.items() if value is not None}}


class NamedFunction(Strict):
    """The name of a function."""

    place = "tool_choice.function."

    name: TextField


class NamedTool(Strict):
    """The tool that the model has to call."""

    place = "tool_choice."

    type: Literal["function"]
    function: NamedFunction


class FunctionPick(Strict):
    """One of the tools that the model may call."""

    place = "tool_choice.allowed_tools.tools."

    type: Literal["function"]
    function: NamedFunction


class AllowedFunctions(Strict):
    """The only tools that the model may call, and whether it has to call one."""

    place = "tool_choice.allowed_tools."

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionPick], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedChoice(Strict):
    """The choice of some of the tools."""

    place = "tool_choice."

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


def _find_choice(choice: object) -> str:
    kind = choice.get("type") if isinstance(choice, dict) else getattr(choice, "type", None)
    return f"{VARIANT}{kind or 'function'}"


ToolsField = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[NamedTool, Tag(f"{VARIANT}function")] | Annotated[AllowedChoice, Tag(f"{VARIANT}allowed_tools")],
        Discriminator(
            _find_choice,
            custom_error_type="unsupported_choice",
            custom_error_message="supported are the types 'function' and 'allowed_tools'",
        ),
    ]
)


def check_tools(tools: list[Tool] | None, choice: str | NamedTool | AllowedChoice | None) -> None:
    """Refuse tools that contradict each other or the choice, or need what is not supported."""
    names = [tool.function.name for tool in tools or ()]
    picks = choice.allowed_tools.tools if isinstance(choice, AllowedChoice) else []
    if not {pick.function.name for pick in picks} <= set(names):
        raise refuse("tool_choice", "'tool_choice' allows a function that is not in 'tools'")
    if len(set(names)) < len(names):
        raise refuse("tools", "'tools' has two functions of the same name")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise refuse("tool_choice", "'tool_choice' names a function that is not in 'tools'")
    if choice == "required" and not names:
        raise refuse("tool_choice", "'tool_choice': 'required' is only for requests with 'tools'")
