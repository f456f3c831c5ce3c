"""The schemas of the Responses API's tools; tools hosted by OpenAI are left out or refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from parallax_api_responses.input_models import find_type
from parallax_chat_requests.chat_messages import MAX_TOOLS, Parameters, ToolName
from parallax_chat_requests.neutral_fields import Neutral, Tolerant
from parallax_core.api.bodies import IGNORED, LEFT_OUT, VARIANT, Strict, TextField, refuse

NEUTRAL_TOOL: Neutral = {"allowed_callers": (["direct"],), "async": (False,), "defer_loading": (False,)}
"""Fields of tools that are not supported, with the values that mean nothing."""

SUPPORTED = ("function", "custom", "namespace")
"""The types of tools that may be offered."""


class FunctionTool(Tolerant):
    """A function that the model may call."""

    place = "tools."
    neutral = {**NEUTRAL_TOOL, "output_schema": ()}  # noqa: RUF012 -- as in every body

    type: Literal["function"]
    name: ToolName
    description: TextField | None = None
    parameters: Parameters | None = None
    """The JSON Schema of its arguments, an object."""
    strict: bool | None = None
    """Whether arguments must follow the schema; those of a call forced by ``tool_choice`` always do."""


class TextFormat(Strict):
    """Any text."""

    place = "tools.format."

    type: Literal["text"]


class GrammarFormat(Strict):
    """A text that matches a grammar."""

    place = "tools.format."

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: TextField


InputFormat = Annotated[
    Annotated[TextFormat, Tag(f"{VARIANT}text")] | Annotated[GrammarFormat, Tag(f"{VARIANT}grammar")],
    Discriminator(
        find_type, custom_error_type="unsupported_format", custom_error_message="supported are 'text' and 'grammar'"
    ),
]


class CustomTool(Tolerant):
    """A tool whose input is text, not JSON."""

    place = "tools."
    neutral = NEUTRAL_TOOL

    type: Literal["custom"]
    name: ToolName
    description: TextField | None = None
    format: InputFormat | None = None


SimpleTool = Annotated[
    Annotated[FunctionTool, Tag(f"{VARIANT}function")] | Annotated[CustomTool, Tag(f"{VARIANT}custom")],
    Discriminator(
        find_type,
        custom_error_type="unsupported_tool",
        custom_error_message="a namespace may have tools of the types 'function' and 'custom'",
    ),
]


class NamespaceTool(Strict):
    """Tools that belong together."""

    place = "tools."

    type: Literal["namespace"]
    name: ToolName
    description: TextField | None = None
    tools: Annotated[list[SimpleTool], Field(max_length=MAX_TOOLS, fail_fast=True)]


AnyTool = Annotated[
    Annotated[FunctionTool, Tag(f"{VARIANT}function")]
    | Annotated[CustomTool, Tag(f"{VARIANT}custom")]
    | Annotated[NamespaceTool, Tag(f"{VARIANT}namespace")],
    Discriminator(find_type, custom_error_type="unsupported_tool", custom_error_message="a tool needs a 'type'"),
]


LEAVABLE = re.compile(r"web_search(_preview)?(_\d{4}_\d\d_\d\d)?|image_generation")
"""Hosted tools that are left out if a request offers them: clients offer them to every model."""


def drop_hosted(tools: object) -> object:
    """Drop and note tools that OpenAI hosts and clients offer to every model; refuse other unknown types by name.

    The latter are dropped and noted, too, if unknown fields are ignored.
    """
    if not isinstance(tools, list):
        return tools
    kept = []
    for number, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or kind in SUPPORTED:
            kept.append(tool)
        elif IGNORED.get() is not None or LEAVABLE.fullmatch(kind):
            LEFT_OUT.get({})[f"tools.{kind}"] = None
        else:
            place, names = f"{number}.type", " and ".join(repr(each) for each in SUPPORTED)
            message = f"'{place}' is {kind[:100]!r}, which this server does not have; it has {names}: leave it out"
            raise refuse(place, message)
    return kept


AnyTools = Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(drop_hosted)]


class ToolPick(Strict):
    """The tool that the model has to call."""

    place = "tool_choice."

    type: Literal["function", "custom"]
    name: TextField
    namespace: TextField | None = None


class AllowedTools(Strict):
    """The only tools that the model may call."""

    place = "tool_choice."

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolPick], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


ChoiceMode = Literal["none", "auto", "required"]
AnyChoice = (
    ChoiceMode
    | Annotated[
        Annotated[ToolPick, Tag(f"{VARIANT}function")]
        | Annotated[ToolPick, Tag(f"{VARIANT}custom")]
        | Annotated[AllowedTools, Tag(f"{VARIANT}allowed_tools")],
        Discriminator(
            find_type,
            custom_error_type="unsupported_choice",
            custom_error_message="supported are the types 'function', 'custom' and 'allowed_tools'",
        ),
    ]
)


class PlacedTool:
    """A tool with its place in the request."""

    def __init__(self, tool: FunctionTool | CustomTool, path: str, namespace: str = "") -> None:
        self.tool = tool
        self.path = path
        """The path of the tool in the body."""
        self.namespace = namespace
        self.full_name = join_names(namespace, tool.name)
        """The name by which the model calls it."""

    def is_picked(self, pick: ToolPick) -> bool:
        """Return whether a choice names this tool."""
        return (pick.type, pick.name, pick.namespace or "") == (self.tool.type, self.tool.name, self.namespace)


def join_names(namespace: str, name: str) -> str:
    """Return the name of a tool of a namespace as the model sees it."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def list_tools(tools: Sequence[FunctionTool | CustomTool | NamespaceTool]) -> Iterator[PlacedTool]:
    """Yield all tools, those of namespaces too."""
    for number, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            for inner, each in enumerate(tool.tools):
                yield PlacedTool(each, f"tools.{number}.tools.{inner}", tool.name)
        else:
            yield PlacedTool(tool, f"tools.{number}")


def check_tools(tools: Sequence[PlacedTool], choice: Any) -> None:  # noqa: ANN401 -- any `AnyChoice`
    """Refuse tools that contradict each other or the choice, or need what is not supported."""
    names = [tool.full_name for tool in tools]
    if len(set(names)) < len(names):
        raise refuse("tools", "'tools' has two tools of the same name")
    if len(names) > MAX_TOOLS:
        raise refuse("tools", f"'tools' has {len(names)} tools in all, and may have {MAX_TOOLS}")
    picks = choice.tools if isinstance(choice, AllowedTools) else [choice] if isinstance(choice, ToolPick) else []
    for pick in picks:
        if not any(tool.is_picked(pick) for tool in tools):
            raise refuse("tool_choice", f"'tool_choice' names the tool '{pick.name[:100]}', which is not in 'tools'")
    if choice == "required" and not names:
        raise refuse("tool_choice", "'tool_choice': 'required' is only for requests with 'tools'")
