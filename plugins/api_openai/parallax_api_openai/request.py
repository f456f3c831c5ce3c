"""Turns the bodies of chat and completion requests into engine requests."""

from __future__ import annotations

from parallax_api_openai.completion_request import CompletionRequest
from parallax_chat_requests.engine_request import parse_generation, read_chat, read_prompts
from parallax_chat_requests.request_models import ChatRequest
from parallax_core.api.bodies import BodyReader, BodyRequest, ModelTokenizer, ParsedBody, check_lengths

DEFAULT_COMPLETION_TOKENS = 16
"""The default ``max_tokens`` of a completion request in OpenAI's API."""


def read_chat_body(reader: BodyReader, body: ChatRequest, ask: BodyRequest) -> ParsedBody:
    """Read a conversation.

    Raises:
        InvalidRequest: if it cannot be served; it names the field.
    """
    return check_lengths(read_chat(reader.text, body, reader.parser), ask, "messages", "shorten the conversation")


def read_completion_body(reader: BodyReader, body: CompletionRequest, ask: BodyRequest) -> ParsedBody:
    """Read one prompt or several; raises what `read_chat_body` raises."""
    return check_lengths(read_completion(reader.text, body), ask, "prompt", "shorten it")


def read_completion(text: ModelTokenizer, body: CompletionRequest) -> ParsedBody:
    """Return the parsed body of a completion request; raises what `read_chat_body` raises."""
    max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    is_ranked = (body.best_of or 0) > body.num_answers
    prompts = read_prompts(text, body.prompt)
    echoes = tuple(map(text.decode, prompts)) if body.echo else ()
    return parse_generation(
        text,
        body,
        prompts,
        form={"logprobs": body.logprobs, "is_shown": body.max_tokens != 0, "echoes": echoes},
        request={
            "max_tokens": max(max_tokens, 1),  # an engine draws at least one token; it is hidden
            "n": body.best_of or body.num_answers,
            "logprobs": (body.logprobs or 0) if is_ranked else body.logprobs,
            "prompt_logprobs": body.logprobs if body.echo else None,
        },
    )
