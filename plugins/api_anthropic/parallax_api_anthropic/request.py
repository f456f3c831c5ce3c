"""Turns a validated body of Anthropic's Messages API into an engine request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from parallax_api_anthropic.body_models import CountTokensRequest, MessagesRequest, OutputFormat
from parallax_api_anthropic.replies import TokenCountReply
from parallax_api_anthropic.turns import list_messages, make_choice, make_tool
from parallax_chat_requests.engine_request import parse_chat, read_conversation
from parallax_chat_requests.request_models import ChatRequest
from parallax_chat_requests.structured_output import JsonSchemaFormat, ResponseFormat
from parallax_core.api import InvalidRequest
from parallax_core.api.bodies import (
    REASONING_SWITCHES,
    BodyReader,
    BodyRequest,
    DirectAnswer,
    ModelTokenizer,
    ParsedBody,
    Pin,
    PromptEnding,
    check_lengths,
    to_json,
)

FIELDS = {
    "continue_final_message": "messages",
    "max_reasoning_tokens": "thinking",
    "response_format": "output_config.format",
}
"""The names of fields of a chat request in the Messages API, where they differ."""


KEEPS_BILLING_LINE = b"keeps billing line"
"""The `BodyRequest.extra` with which the line of a system prompt that changes with every request stays."""


def read_messages(reader: BodyReader, body: MessagesRequest, ask: BodyRequest) -> ParsedBody:
    """Return the parsed body of a request for a message.

    Raises:
        InvalidRequest: if it cannot be served; it names the field.
    """
    text, parser, chat = reader.text, reader.parser, _make_chat(reader.text, body, ask)
    try:
        prompt = read_conversation(text, chat, parser, _find_ending(body))
        room = max(1, ask.max_length - len(prompt)) if ask.max_length else body.max_tokens
        sampling = {"temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k}
        chat = chat.model_copy(
            update={
                "max_tokens": max(1, min(body.max_tokens, room)),  # an engine draws at least one token
                "stop": body.stop_sequences,
                "stream": body.stream,
                **sampling,
            }
        )
        reading = parse_chat(text, chat, prompt, parser)
    except InvalidRequest as error:
        raise _rename(error) from error
    field = reading.form.grammar_field
    form = msgspec.structs.replace(
        reading.form,
        is_shown=body.max_tokens > 0,
        fills_context=room < body.max_tokens,
        grammar_field=FIELDS.get(field, field),
        tool_fields={tool.name: f"tools.{number}.input_schema" for number, tool in enumerate(body.tools or ())},
    )
    pin = None if body.pin_s is None else Pin(body.pin_s)
    reading = msgspec.structs.replace(reading, form=form, request=replace(reading.request, pin=pin))
    return check_lengths(reading, ask, "messages", "shorten the conversation")


def count_tokens(reader: BodyReader, body: CountTokensRequest, ask: BodyRequest) -> DirectAnswer:
    """Return the number of tokens of the prompt for a conversation; raises what `read_messages` raises."""
    try:
        chat = _make_chat(reader.text, body, ask)
        prompt = read_conversation(reader.text, chat, reader.parser, _find_ending(body))
        return DirectAnswer(to_json(TokenCountReply(len(prompt))))
    except InvalidRequest as error:
        raise _rename(error) from error


def _make_chat(text: ModelTokenizer, body: CountTokensRequest, ask: BodyRequest) -> ChatRequest:
    """Return the chat request with the same conversation, tools and reasoning."""
    choice, thinking = body.tool_choice, body.thinking
    return ChatRequest.model_construct(
        model=body.model,
        messages=list_messages(body, keeps_billing_line=ask.extra == KEEPS_BILLING_LINE),
        tools=[make_tool(tool) for tool in body.tools or ()],
        tool_choice=make_choice(choice) if choice else None,
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        chat_template_kwargs=_switch_reasoning(text, body),
        max_reasoning_tokens=thinking.budget_tokens if thinking else None,
        response_format=_make_format(body.answer_format) if body.answer_format else None,
        reasoning_effort=_read_effort(body),
    )


def _switch_reasoning(text: ModelTokenizer, body: CountTokensRequest) -> dict[str, Any]:
    """Return the variables that turn reasoning on if the body does, as far as the chat template has them."""
    if body.thinking is None or body.thinking.type != "enabled":
        return {}
    return {name: True for name in REASONING_SWITCHES if text.template_uses(name)}


def _read_effort(body: CountTokensRequest) -> str | None:
    """Return the ``reasoning_effort`` that a chat request would have."""
    if body.thinking is not None and body.thinking.type == "disabled":
        return "none"
    effort = body.output_config.effort if body.output_config else None
    return "xhigh" if effort == "max" else effort


def _make_format(answer: OutputFormat) -> ResponseFormat:
    schema = JsonSchemaFormat.model_construct(name="answer", schema_=answer.schema_)
    return ResponseFormat.model_construct(type="json_schema", json_schema=schema)


def _find_ending(body: CountTokensRequest) -> PromptEnding:
    return PromptEnding(opens_answer=not body.continues_last, continues_last=body.continues_last)


def _rename(error: InvalidRequest) -> InvalidRequest:
    """Return the error with the name that its field has in the Messages API."""
    if error.param not in FIELDS:
        return error
    message = error.message.replace(error.param, FIELDS[error.param])
    return InvalidRequest(message, FIELDS[error.param], "leave it out, or change it")
