"""The schema of completion requests."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from parallax_chat_requests.fields import TokensField, Top
from parallax_chat_requests.neutral_fields import Neutral
from parallax_chat_requests.request_models import Generation
from parallax_core.api.bodies import MAX_ANSWERS, TextField, refuse

MAX_PROMPTS = 256
"""The largest number of prompts in one body."""

Texts = Annotated[list[TextField], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
TokenLists = Annotated[list[TokensField], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]

NEUTRAL_COMPLETION: Neutral = {**Generation.neutral, "add_special_tokens": (True,), "suffix": ("",)}
"""Unsupported fields of OpenAI and of vLLM, with the values that, like null, have no effect."""


def _read_false(value: object) -> object:
    """Return nothing for false, which other routes have for the same."""
    return None if value is False else value


class CompletionRequest(Generation):
    """The body of ``POST /v1/completions``."""

    neutral = NEUTRAL_COMPLETION

    prompt: TextField | Texts | TokensField | TokenLists
    """The text to continue: a string, token ids, or a list of up to 256 of either; each prompt gets its own answers."""
    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """The largest number of tokens of an answer; 16 by default, and 0 for no text but that of ``echo``."""
    echo: bool | None = None
    """Begin each answer with its prompt; with ``logprobs``, also return those of the prompt."""
    best_of: Annotated[int, Field(ge=0, le=MAX_ANSWERS)] | None = None
    """The number of answers to draw, of which the ``n`` with the highest mean log-probability are sent; 0: ``n``."""
    logprobs: Annotated[Top | None, BeforeValidator(_read_false)] = None
    """Return the log-probability of each token, and of this number of most probable tokens at its position; 0 to 20."""

    @model_validator(mode="after")
    def check_together(self) -> Self:
        """Check that the fields do not contradict each other."""
        if self.best_of and self.best_of < self.num_answers:
            raise refuse("best_of", "'best_of' must be at least 'n'")
        if self.stream and (self.best_of or 1) > self.num_answers:
            raise refuse("best_of", "'best_of' cannot be streamed: the best answers are known only at the end")
        return self
