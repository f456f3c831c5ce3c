"""Turns Ollama's requests into OpenAI's for the server's routes. Runs where bodies are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from parallax_core.api import InvalidRequest
from parallax_server_ollama.asked import Asked, name_model, write_body
from parallax_server_ollama.bodies import (
    ChatBody,
    EmbedBody,
    Format,
    GenerateBody,
    KeepAlive,
    Message,
    Options,
    ShowBody,
    Think,
    read,
)

Json = dict[str, Any]

SAME = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty")
"""The options that have the same name there."""
CHAT = "/v1/chat/completions"


def read_chat(data: bytes) -> Asked:
    """Return what a body of ``POST /api/chat`` asks for.

    Raises:
        InvalidRequest: if it is not valid, or the server cannot do it; it names the field.
    """
    body: ChatBody = read(data, ChatBody)
    if not body.messages:
        return Asked(model=body.model, unloads=_is_none(body.keep_alive))
    tools = {"tools": body.tools} if body.tools else {}
    return _ask(body, CHAT, {"messages": make_messages(body.messages), **tools})


def read_generate(data: bytes) -> Asked:
    """Return what a body of ``POST /api/generate`` asks for: a completion or, with the chat template, a chat.

    Raises what `read_chat` raises.
    """
    body: GenerateBody = read(data, GenerateBody)
    if not body.prompt:
        return Asked(model=body.model, unloads=_is_none(body.keep_alive))
    if not body.raw:
        system = [Message("system", body.system)] if body.system else []
        return _ask(body, CHAT, {"messages": make_messages([*system, Message("user", body.prompt)])})
    for name in ("system", "think"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"'{name}' is for prompts with a chat template: leave out 'raw'", name)
    return _ask(body, "/v1/completions", {"prompt": body.prompt})


def read_embed(data: bytes) -> Asked:
    """Return the request in a body of ``POST /api/embed``; raises as `read_chat` does."""
    body: EmbedBody = read(data, EmbedBody)
    sizes = {} if body.dimensions is None else {"dimensions": body.dimensions}
    asked = {"model": name_model(body.model), "input": body.input, **sizes}
    context = body.options.num_ctx or 0
    return Asked(model=body.model, path="/v1/embeddings", body=write_body(asked), context=context)


def read_show(data: bytes) -> Asked:
    """Return the request in a body of ``POST /api/show``; raises as `read_chat` does."""
    body: ShowBody = read(data, ShowBody)
    return Asked(model=body.model or body.name)


def _ask(body: ChatBody | GenerateBody, path: str, prompt: Json) -> Asked:
    whole = {**_make_common(body), **prompt}
    context, streams = body.options.num_ctx or 0, body.stream is not False
    return Asked(model=body.model, path=path, body=write_body(whole), streams=streams, context=context)


def _is_none(keep_alive: KeepAlive | None) -> bool:
    return keep_alive in {0, "0", "0s"}


def make_messages(messages: Sequence[Message]) -> list[Json]:
    """Return the messages of a chat; Ollama's calls have no ids, so a result belongs to the first call without one."""
    found: list[Json] = []
    waiting: list[tuple[str, str]] = []
    for number, message in enumerate(messages):
        turn: Json = {"role": message.role, "content": message.content}
        if message.thinking:
            turn["reasoning_content"] = message.thinking
        if message.tool_calls:
            names = [call.id or f"call_{number}_{at}" for at, call in enumerate(message.tool_calls)]
            turn["tool_calls"] = [
                _make_call(name, call.function.name, call.function.arguments)
                for name, call in zip(names, message.tool_calls, strict=True)
            ]
            waiting = [(name, call.function.name) for name, call in zip(names, message.tool_calls, strict=True)]
        if message.role == "tool":
            turn["tool_call_id"] = message.tool_call_id or _take_call(waiting, message.tool_name, number)
        found.append(turn)
    return found


def _make_call(name: str, function: str, arguments: Json) -> Json:
    called = {"name": function, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": name, "type": "function", "function": called}


def _take_call(waiting: list[tuple[str, str]], function: str | None, number: int) -> str:
    """Return the id of the call that a result belongs to, and take it from those that wait."""
    for at, (name, called) in enumerate(waiting):
        if function in {None, called}:
            del waiting[at]
            return name
    message = f"'messages.{number}' is the result of a call that no earlier message has"
    raise InvalidRequest(message, f"messages.{number}")


def _make_common(body: ChatBody | GenerateBody) -> Json:
    return {
        "model": name_model(body.model),
        "stream": True,  # For a whole answer too: it has to say when its first token came.
        "stream_options": {"include_usage": True},
        **_make_sampling(body.options),
        **_make_format(body.format),
        **_make_effort(body.think),
    }


def _make_sampling(options: Options) -> Json:
    found = {name: value for name in SAME if (value := getattr(options, name)) is not None}
    if options.repeat_penalty is not None:
        found["repetition_penalty"] = options.repeat_penalty
    if options.num_predict is not None and options.num_predict >= 0:
        found["max_tokens"] = options.num_predict
    return found


def _make_format(form: Format | None) -> Json:
    if not form:
        return {}
    if form == "json":
        return {"response_format": {"type": "json_object"}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": form}}}


def _make_effort(think: Think | None) -> Json:
    if think is None:
        return {}
    return {"reasoning_effort": ("medium" if think else "none") if isinstance(think, bool) else think}
