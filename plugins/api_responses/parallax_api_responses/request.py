"""Turns a validated body of the Responses API into an engine request, as that of a chat request."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import TypeAdapter

from parallax_api_responses.body_models import ENCRYPTED, LOGPROBS, CompactRequest, ResponsesRequest, SchemaFormat
from parallax_api_responses.conversation import ConversationPart, list_input, list_messages, make_tools
from parallax_api_responses.input_models import InputParts, PartReference, list_references
from parallax_api_responses.plan import KeptHistory, ResponsePlan, ToolOrigin, WantedHistory
from parallax_api_responses.replies import EchoedReasoning, ResponsesReply
from parallax_api_responses.tool_models import CustomTool, FunctionTool, GrammarFormat, NamespaceTool, PlacedTool
from parallax_chat_requests.chat_messages import NamedFunction, NamedTool
from parallax_chat_requests.engine_request import read_chat
from parallax_chat_requests.request_models import ChatRequest, Sampled
from parallax_chat_requests.structured_output import JsonSchemaFormat, ResponseFormat, StructuredOutputs
from parallax_core.api import InvalidRequest
from parallax_core.api.bodies import (
    ANSWER,
    BodyReader,
    BodyRequest,
    JsonObject,
    MoreNeeded,
    ParsedBody,
    PromptEnding,
    check_lengths,
    to_json,
)

SAME = (*Sampled.model_fields, "chat_template_kwargs", "max_reasoning_tokens", "parallel_tool_calls")
"""The fields that a chat request has by the same name."""
FIELDS = {
    "messages": "input",
    "continue_final_message": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""The names of fields of a chat request in the Responses API, where they differ."""
CONTINUED = PromptEnding(opens_answer=False, continues_last=True)
"""The prompt ends within the last message."""
FREEFORM = "parallax_api_responses.freeform_calls:FreeformCallParser"
"""What reads an answer that is the input of a custom tool."""


HISTORY: TypeAdapter[list[Any]] = TypeAdapter(InputParts)
"""The schema of the parts of earlier requests and responses."""


def read_compact(reader: BodyReader, body: CompactRequest, ask: BodyRequest) -> ParsedBody | MoreNeeded:
    """Read a conversation that is to be summarized, as `read_responses` does."""
    return read_responses(reader, body.as_request(), ask)


def read_responses(reader: BodyReader, body: ResponsesRequest, ask: BodyRequest) -> ParsedBody | MoreNeeded:
    """Return the parsed body of a request for a response, or the earlier response that has to be found first.

    Raises:
        InvalidRequest: if it cannot be served; it names the field.
    """
    found = msgspec.msgpack.decode(ask.extra, type=KeptHistory) if ask.extra else KeptHistory()
    stores = _check_store(body, has_store=found.has_store)
    references = list_references(body.input)
    if (body.previous_response_id is not None or references) and found.items is None:
        return MoreNeeded(msgspec.msgpack.encode(WantedHistory(body.previous_response_id, references)))
    body = _insert_items(body, found.items or b"[]")
    freeform, history = _find_freeform(body), HISTORY.validate_json(found.history or b"[]")
    try:
        chat, ending = _make_chat(body, history, freeform), CONTINUED if body.continues_last else ANSWER
        reading = read_chat(reader.text, chat, reader.parser, ending)
    except InvalidRequest as error:
        raise _rename(error, freeform) from error
    plan = ResponsePlan(
        reply=to_json(_begin_reply(body, reading, stores=stores)),
        tools={
            tool.full_name: ToolOrigin(tool.tool.type, tool.tool.name, tool.namespace) for tool in body.placed_tools
        },
        input=to_json([part.model_dump(exclude_none=True) for part in list_input(body)]) if stores else b"[]",
        previous=body.previous_response_id,
        stores=stores,
        in_background=bool(body.background),
        summarizes=body.summarizes,
        encrypts=body.includes(ENCRYPTED),
    )
    field = reading.form.grammar_field
    form = msgspec.structs.replace(
        reading.form,
        length_field="max_output_tokens",
        prompt_field="input",
        grammar_field=FIELDS.get(field, field) if freeform is None else f"{freeform.path}.format",
        tool_fields=_list_schema_fields(body),
        forced_call=reading.form.forced_call if freeform is None else freeform.full_name,
        call_reader="" if freeform is None else FREEFORM,
        plan=msgspec.msgpack.encode(plan),
    )
    return check_lengths(msgspec.structs.replace(reading, form=form), ask, "input", "shorten the conversation")


def _insert_items(body: ResponsesRequest, items: bytes) -> ResponsesRequest:
    """Return the request with ``items``, a JSON list, in place of the references to them."""
    left = iter(HISTORY.validate_json(items))
    if isinstance(body.input, str):
        return body
    parts = [next(left) if isinstance(part, PartReference) else part for part in body.input]
    return body.model_copy(update={"input": parts})


def _list_schema_fields(body: ResponsesRequest) -> dict[str, str]:
    """Return the field with the schema of each function."""
    functions = (tool for tool in body.placed_tools if isinstance(tool.tool, FunctionTool))
    return {tool.full_name: f"{tool.path}.parameters" for tool in functions}


def _find_freeform(body: ResponsesRequest) -> PlacedTool | None:
    """Return the custom tool that the answer has to call: the whole answer is its input then."""
    forced = body.forced_tool
    return forced if forced is not None and isinstance(forced.tool, CustomTool) else None


def _check_store(body: ResponsesRequest, *, has_store: bool) -> bool:
    """Return whether the response is kept.

    Raises:
        InvalidRequest: if it cannot be, and has to be.
    """
    for field in ("store", "background"):
        if getattr(body, field) and not has_store:
            message = f"'{field}': this server keeps no responses"
            raise InvalidRequest(message, field, "leave it out, or start it with a response_store_size above 0")
    return has_store and body.store is not False


def _make_chat(body: ResponsesRequest, history: list[ConversationPart], freeform: PlacedTool | None) -> ChatRequest:
    """Return the chat request that asks for the same; its fields are valid already."""
    asks = body.includes(LOGPROBS) or body.top_logprobs is not None
    return ChatRequest.model_construct(
        **{name: getattr(body, name) for name in SAME},
        messages=list_messages(body, history),
        max_tokens=body.max_output_tokens,
        tools=make_tools(body.offered_tools),
        tool_choice=None if freeform else _make_choice(body),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        response_format=_make_format(body),
        structured_outputs=_make_grammar(freeform) if freeform else None,
        logprobs=asks,
        top_logprobs=body.top_logprobs,
    )


def _make_choice(body: ResponsesRequest) -> str | NamedTool | None:
    if (forced := body.forced_tool) is not None:
        return NamedTool.model_construct(type="function", function=NamedFunction.model_construct(name=forced.full_name))
    return "required" if body.requires_call else None


def _make_format(body: ResponsesRequest) -> ResponseFormat | None:
    form = body.text.format if body.text else None
    if not isinstance(form, SchemaFormat):
        return ResponseFormat.model_construct(type=form.type) if form else None
    schema = JsonSchemaFormat.model_construct(name=form.name, schema_=form.schema_)
    return ResponseFormat.model_construct(type="json_schema", json_schema=schema)


def _make_grammar(placed: PlacedTool) -> StructuredOutputs | None:
    """Return the grammar of the input of a custom tool."""
    form = placed.tool.format if isinstance(placed.tool, CustomTool) else None
    if not isinstance(form, GrammarFormat):
        return None
    if form.syntax == "lark":
        return StructuredOutputs.model_construct(grammar=form.definition)
    return StructuredOutputs.model_construct(regex=form.definition)


def _begin_reply(body: ResponsesRequest, reading: ParsedBody, *, stores: bool) -> ResponsesReply:
    """Return the response with the fields of the request that it repeats, with the values in effect."""
    sampling, reasoning = reading.request.sampling, body.reasoning
    summary = (reasoning.summary or reasoning.generate_summary) if reasoning else None
    return ResponsesReply(
        background=bool(body.background),
        frequency_penalty=sampling.frequency_penalty,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=str(body.model),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        presence_penalty=sampling.presence_penalty,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=EchoedReasoning(reasoning.effort if reasoning else None, summary),
        safety_identifier=body.safety_identifier,
        temperature=sampling.temperature,
        text={"format": _write_format(body.text.format if body.text else None)},
        tool_choice=_write_choice(body),
        tools=[_write_tool(tool) for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.top_p,
        user=body.user,
        store=stores,
    )


def _write_format(form: Any) -> JsonObject:  # noqa: ANN401 -- one of the forms of `TextOptions`
    return {"type": "text"} if form is None else {**form.model_dump(exclude_none=True)}


def _write_choice(body: ResponsesRequest) -> str | JsonObject:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    return choice.model_dump(exclude_none=True)


def _write_tool(tool: FunctionTool | CustomTool | NamespaceTool) -> JsonObject:
    written: JsonObject = tool.model_dump(exclude_none=True)
    if isinstance(tool, FunctionTool):
        written |= {"parameters": tool.parameters, "strict": bool(tool.strict)}
    elif isinstance(tool, NamespaceTool):
        written |= {"description": tool.description or "", "tools": [_write_tool(each) for each in tool.tools]}
    return written


def _rename(error: InvalidRequest, freeform: PlacedTool | None) -> InvalidRequest:
    """Return the error with the name that its field has in the Responses API."""
    name, _, rest = (error.param or "").partition(".")
    names = FIELDS if freeform is None else {**FIELDS, "structured_outputs": f"{freeform.path}.format"}
    if name not in names:
        return error
    path = f"{names[name]}.{rest}" if rest else names[name]
    return InvalidRequest(error.message.replace(str(error.param), path), path, error.hint)
