"""From the body of a request to what an engine is asked."""

from __future__ import annotations

import secrets
from dataclasses import replace

import msgspec

from parallax_core.base.errors import InvalidRequest
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Request
from parallax_core.contracts.sample import Sampling
from parallax_core.node.text import ModelText
from parallax_core.server.schema import ChatRequest, CompletionRequest, Generation

SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
)
"""The fields that `Sampling` has by the same name."""

DEFAULT_COMPLETION_TOKENS = 16
"""What OpenAI's API generates where a completion request says nothing."""


LEAST_TEMPERATURE = 1e-6
"""Less is none: logits divided by it are beyond what single precision can tell apart, and soon beyond its range."""


def read_chat(text: ModelText, body: ChatRequest, request_id: str) -> Request:
    """Return the request of a chat.

    Raises:
        InvalidRequest: naming the field, if it cannot be served.
    """
    prompt = text.encode_chat([message.as_turn() for message in body.messages], body.chat_template_kwargs)
    request = _read_common(text, body, prompt, request_id)
    return _check_lengths(
        replace(
            request,
            max_tokens=body.max_tokens or body.max_completion_tokens,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )
    )


def read_completion(text: ModelText, body: CompletionRequest, request_id: str) -> list[Request]:
    """Return a request for each prompt of a completion.

    Raises:
        InvalidRequest: naming the field, if one cannot be served.
    """
    max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    is_ranked = (body.best_of or 0) > body.num_answers
    requests = [
        replace(
            _read_common(text, body, prompt, f"{request_id}-{index}"),
            max_tokens=max(max_tokens, 1),  # an engine draws one token at least; it is not shown
            n=body.best_of or body.num_answers,
            logprobs=(body.logprobs or 0) if is_ranked else body.logprobs,
            prompt_logprobs=body.logprobs if body.echo else None,
        )
        for index, prompt in enumerate(read_prompts(text, body))
    ]
    return [_check_lengths(request) for request in requests]


def read_prompts(text: ModelText, body: CompletionRequest) -> list[tuple[int, ...]]:
    """Return the tokens of each prompt."""
    prompts = body.prompt
    if isinstance(prompts, str):
        prompts = [prompts]
    if isinstance(prompts[0], int):
        prompts = [prompts]
    return [_read_prompt(text, prompt) for prompt in prompts]


def _read_prompt(text: ModelText, prompt: str | list[int]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return text.encode(prompt)
    check_tokens(text, prompt, "prompt")
    return tuple(prompt)


def check_tokens(text: ModelText, tokens: list[int], param: str) -> None:
    """Raise InvalidRequest, naming ``param``, for a token the model does not have."""
    if tokens and (largest := max(tokens)) >= text.vocab_size:
        message = f"'{param}' has token {largest}, and the model's tokens end at {text.vocab_size - 1}"
        raise InvalidRequest(message, param)


def _read_common(text: ModelText, body: Generation, prompt: tuple[int, ...], request_id: str) -> Request:
    """Return the request with what both routes have in common."""
    check_tokens(text, body.stop_token_ids or [], "stop_token_ids")
    stop_ids = frozenset(body.stop_token_ids or ()) | (frozenset() if body.ignore_eos else text.stop_ids)
    return Request(
        id=RequestId(request_id),
        prompt=prompt,
        max_tokens=None,
        sampling=_read_sampling(text, body, stop_ids),
        stop_ids=stop_ids,
        stop=body.stops,
        priority=body.priority or 0,
        timeout_s=body.timeout,
        n=body.num_answers,
    )


def _check_lengths(request: Request) -> Request:
    least, most = request.sampling.min_tokens, request.max_tokens
    if most is not None and least > most:
        raise InvalidRequest(f"'min_tokens' is {least}, and 'max_tokens' {most}", "min_tokens")
    return request


def _read_sampling(text: ModelText, body: Generation, stop_ids: frozenset[int]) -> Sampling:
    biases = {int(token): bias for token, bias in (body.logit_bias or {}).items()}
    check_tokens(text, list(biases), "logit_bias")
    chosen = {name: value for name in SAME if (value := getattr(body, name)) is not None}
    if chosen.get("temperature", 1) < LEAST_TEMPERATURE:
        chosen["temperature"] = 0
    return msgspec.structs.replace(
        text.sampling,
        seed=secrets.randbits(64) if body.seed is None else body.seed % 2**64,
        logit_bias=tuple(sorted(biases.items())),
        stop_ids=tuple(sorted(stop_ids)) if body.min_tokens else (),
        **chosen,
    )
