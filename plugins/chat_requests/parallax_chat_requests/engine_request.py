"""Turns a validated request body into engine requests."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from parallax_chat_requests.described_tools import describe_tools, encode_described, write_calls
from parallax_chat_requests.reasoning_request import close_reasoning, read_end, read_marks, set_effort, show_end
from parallax_chat_requests.request_models import ChatRequest, Generation
from parallax_chat_requests.structured_output import StructuredOutputs, read_format, read_structured
from parallax_core.api import Grammar, InvalidRequest, Request, RequestId, Sampling
from parallax_core.api.bodies import (
    ANSWER,
    ModelTokenizer,
    ParsedBody,
    ParserTraits,
    PromptEnding,
    ResponseForm,
    Tools,
    Turns,
    lists_calls,
    pack,
    set_grammar,
)

Prompts = str | list[str] | list[int] | list[list[int]]
"""One prompt or several, each a text or token ids."""

SAME = tuple(
    name
    for name in Sampling.__struct_fields__
    if name in Generation.model_fields and name not in {"seed", "logit_bias"}
)
"""The fields that `Sampling` has by the same name and with the same values."""

ALL_TOKENS = -1
"""vLLM's ``top_k`` for all tokens."""
LEAST_TEMPERATURE = 1e-6
"""Lower temperatures count as 0: logits divided by them lose their differences in single precision, or overflow."""


def read_chat(
    text: ModelTokenizer, body: ChatRequest, parser: ParserTraits | None = None, ending: PromptEnding = ANSWER
) -> ParsedBody:
    """Return the parsed body of a chat request; ``parser``: the traits of the parser of the answers.

    Raises:
        InvalidRequest: if it cannot be served; it names the field.
    """
    return parse_chat(text, body, read_conversation(text, body, parser, ending), parser)


def parse_chat(
    text: ModelTokenizer, body: ChatRequest, prompt: tuple[int, ...], parser: ParserTraits | None = None
) -> ParsedBody:
    """Return the parsed body of a chat request with ``prompt`` for its messages; raises as `read_chat` does."""
    prompt_end, logprobs = show_end(text, prompt) if parser else "", (body.top_logprobs or 0) if body.logprobs else None
    parsed = parse_generation(
        text,
        body,
        [prompt],
        form={
            "logprobs": logprobs,
            "length_field": "max_completion_tokens" if body.max_tokens is None else "max_tokens",
            "prompt_field": "messages",
            "prompt_end": prompt_end,
            "tools": {tool.function.name: json.dumps(tool.function.parameters or {}) for tool in body.offered_tools},
            "tool_fields": {
                tool.function.name: f"tools.{number}.function.parameters"
                for number, tool in enumerate(body.tools or ())
            },
            "strict_tools": tuple(tool.function.name for tool in body.offered_tools if tool.function.strict),
            "forced_call": body.forced_call,
            "lists_calls": bool(body.offered_tools) and lists_calls(text, parser),
            "allows_many_calls": body.parallel_tool_calls is not False,
            "max_reasoning": body.max_reasoning_tokens,
            "reasoning_end": read_end(text, body.max_reasoning_tokens, parser),
        },
        request={
            "max_tokens": body.max_tokens or body.max_completion_tokens,
            "default_max_tokens": text.defaults.max_tokens,
            "logprobs": logprobs,
            "shown_tokens": text.find_special(parser.special_tokens) if parser else frozenset(),
            "reasoning_marks": read_marks(parser, prompt_end),
        },
    )
    form, request = set_grammar(text, parser or ParserTraits(), parsed.form, parsed.request)
    return msgspec.structs.replace(parsed, form=form, request=request)


def parse_generation(
    text: ModelTokenizer,
    body: Generation,
    prompts: Sequence[tuple[int, ...]],
    *,
    form: Mapping[str, Any],
    request: Mapping[str, Any],
) -> ParsedBody:
    """Return the parsed body of a request for text after each of its prompts.

    Args:
        text: the model's tokenizer.
        body: the request, of which the fields of `Generation` are read.
        prompts: the tokens of each prompt.
        form: further fields of the `ResponseForm`.
        request: further fields of the `Request`, or others than those that the body gives.

    Raises:
        InvalidRequest: if it cannot be served; it names the field.
    """
    return ParsedBody(
        form=_read_form(body, form),
        request=_read_request(text, body, request),
        prompts=tuple(map(pack, prompts)),
        seeds=_draw_seeds(body, len(prompts)),
    )


def read_conversation(
    text: ModelTokenizer, body: ChatRequest, parser: ParserTraits | None, ending: PromptEnding = ANSWER
) -> tuple[int, ...]:
    """Return the prompt for the conversation of a chat request.

    Raises:
        InvalidRequest: if it cannot be served; it names the field.
    """
    tools, turns = [tool.as_template_value() for tool in body.offered_tools], [each.as_turn() for each in body.messages]
    settings = {**set_effort(text, body.reasoning_effort), **(body.chat_template_kwargs or {})}
    may_call = parser is None or parser.may_list_calls or body.forced_call is not None
    if tools and not may_call and lists_calls(text, parser):
        message = "this model was not trained to call tools, or not in a format that is known"
        hint = "send a 'tool_choice' that forces a call, or start the server with --set untrained_tools=true"
        raise InvalidRequest(message, "tools", hint)
    encode = partial(text.encode_chat, settings=settings, ending=ending)
    prompt = encode_turns(text, (turns, tools), encode, parser, body.forced_call)
    closes = body.reasoning_effort == "none" and ending.opens_answer
    return close_reasoning(text, prompt, parser) if closes else prompt


def encode_turns(
    text: ModelTokenizer,
    conversation: tuple[Turns, Tools],
    encode: Callable[..., tuple[int, ...]],
    parser: ParserTraits | None,
    forced_call: str | None = None,
) -> tuple[int, ...]:
    """Return the tokens of a conversation, with tools as the model's template takes them, or described in a turn.

    Args:
        text: the model's tokenizer.
        conversation: the turns, and the tools that the model may call.
        encode: `ModelTokenizer.encode_chat` with its other arguments.
        parser: the traits of the parser of the answers.
        forced_call: the tool to call; empty: any of them; None: it need not call any.
    """
    (turns, tools), as_list = conversation, lists_calls(text, parser)
    if tools and (as_list or not text.takes_tools):
        return encode_described(turns, describe_tools(tools, forced_call, as_list=as_list), encode)
    return encode(turns if text.takes_tools else write_calls(turns), tools=tools)


def read_prompts(text: ModelTokenizer, prompts: Prompts, param: str = "prompt") -> list[tuple[int, ...]]:
    """Return the tokens of each prompt; ``param`` is the name of their field."""
    if isinstance(prompts, str):
        return [text.encode(prompts, param)]
    if isinstance(prompts[0], int):
        return [_read_prompt(text, prompts, param)]
    return [_read_prompt(text, prompt, param) for prompt in prompts]


def _read_prompt(text: ModelTokenizer, prompt: Any, param: str) -> tuple[int, ...]:  # noqa: ANN401 -- one of `Prompts`
    if isinstance(prompt, str):
        return text.encode(prompt, param)
    check_tokens(text, prompt, param)
    return tuple(prompt)


def check_tokens(text: ModelTokenizer, tokens: list[int], param: str) -> None:
    """Raise InvalidRequest, naming ``param``, for a token the model does not have."""
    if tokens and (largest := max(tokens)) >= text.vocab_size:
        message = f"'{param}' has token {largest}, and the model's tokens end at {text.vocab_size - 1}"
        raise InvalidRequest(message, param)


def _read_form(body: Generation, more: Mapping[str, Any]) -> ResponseForm:
    return ResponseForm(
        model=body.model or "",
        grammar_field=next(iter(body.list_structured()), "response_format"),
        num_answers=body.num_answers,
        streams=bool(body.stream),
        includes_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        **more,
    )


def _read_request(text: ModelTokenizer, body: Generation, more: Mapping[str, Any]) -> Request:
    """Return the request with the fields of both routes, and ``more``."""
    check_tokens(text, body.stop_token_ids or [], "stop_token_ids")
    stop_ids = frozenset(body.stop_token_ids or ()) | (frozenset() if body.ignore_eos else text.stop_ids)
    fields = {
        "n": body.num_answers,
        "sampling": _read_sampling(text, body, stop_ids),
        "stop_ids": stop_ids,
        "stop": body.stops,
        "priority": body.priority or 0,
        "timeout_s": body.timeout,
        "is_seeded": body.seed is not None,
        "salt": body.cache_salt or "",
        "grammar": _read_grammar(body),
    }
    request = Request(id=RequestId(""), prompt=(), **{**fields, **more})
    least, most = request.sampling.min_tokens, request.max_tokens
    if most is not None and least > most:
        raise InvalidRequest(f"'min_tokens' is {least}, and 'max_tokens' {most}", "min_tokens")
    return request


def _read_grammar(body: Generation) -> Grammar | None:
    """Return the grammar of the answers, which may not compile; None: any text."""
    grammar = next(filter(None, (_read_form_of(body, field) for field in body.list_structured())), None)
    outputs = body.structured_outputs
    if grammar is None or outputs is None or outputs.whitespace is None:
        return grammar
    return msgspec.structs.replace(grammar, whitespace=outputs.whitespace)


def _read_form_of(body: Generation, field: str) -> Grammar | None:
    """Return the grammar that a field asks for."""
    value = getattr(body, field)
    if isinstance(value, StructuredOutputs):
        return read_structured(value)
    if field.startswith("guided_"):
        return read_structured(StructuredOutputs(**{field.removeprefix("guided_"): value}), field)
    return read_format(value)


def _draw_seeds(body: Generation, count: int) -> tuple[int, ...]:
    """Return the seed of each prompt: the client's, or a random one per prompt."""
    if body.seed is not None:
        return (body.seed % 2**64,) * count
    return tuple(secrets.randbits(64) for _ in range(count))


def _read_sampling(text: ModelTokenizer, body: Generation, stop_ids: frozenset[int]) -> Sampling:
    biases = {int(token): bias for token, bias in (body.logit_bias or {}).items()}
    check_tokens(text, list(biases), "logit_bias")
    chosen = {name: value for name in SAME if (value := getattr(body, name)) is not None}
    defaults = text.defaults.sampling
    if chosen.get("top_p") == 0:
        chosen |= {"top_p": 1.0, "top_k": 1}
    if chosen.get("top_k") == ALL_TOKENS:
        chosen["top_k"] = 0
    if chosen.get("temperature", defaults.temperature) < LEAST_TEMPERATURE:
        chosen["temperature"] = 0
    return msgspec.structs.replace(
        defaults,
        logit_bias=tuple(sorted(biases.items())),
        stop_ids=tuple(sorted(stop_ids)) if body.min_tokens else (),
        **chosen,
    )
