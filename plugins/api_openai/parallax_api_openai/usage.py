"""The token counts of a request, in OpenAI's form."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from parallax_core.api import Delta
from parallax_core.api.dialect import ResponseFlow, ResponseModel


class CachedTokens(ResponseModel, kw_only=True):
    """Details of the prompt's tokens."""

    audio_tokens: int = 0
    cached_tokens: int
    """Tokens that were not computed because the prefix cache had them."""


class OutputDetails(ResponseModel, kw_only=True):
    """Details of the tokens of the answers."""

    accepted_prediction_tokens: int = 0
    audio_tokens: int = 0
    reasoning_tokens: int
    """Tokens of the reasoning."""
    rejected_prediction_tokens: int = 0


class Usage(ResponseModel):
    """The token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: OutputDetails


def read_note(delta: Delta) -> str | UnsetType:
    """Return what the end of an answer says of how it was computed; UNSET: it says nothing, or is not the end."""
    return (delta.finish.message or UNSET) if delta.finish is not None else UNSET


def write_usage(flow: ResponseFlow, *, is_shown: bool = True, num_reasoning: int = 0) -> Usage:
    """Return the token counts; call it when all requests have ended.

    Args:
        flow: the streams of the requests.
        is_shown: whether the client gets the output; hidden output is not counted.
        num_reasoning: the tokens of the output that are reasoning.
    """
    prompt, cached, output, _ = flow.count_tokens()
    output = output if is_shown else 0
    details = CachedTokens(cached_tokens=cached), OutputDetails(reasoning_tokens=num_reasoning)
    return Usage(prompt, output, prompt + output, *details)
