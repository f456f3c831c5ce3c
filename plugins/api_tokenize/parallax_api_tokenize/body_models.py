"""The schemas of requests for the tokenizer, and of their answers."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from parallax_chat_requests.chat_messages import Messages, ToolsField
from parallax_chat_requests.fields import Token, Variables
from parallax_chat_requests.neutral_fields import Neutral, Tolerant
from parallax_core.api.bodies import ResponseModel, Strict, TextField, refuse

NEUTRAL_TOKENIZE: Neutral = {"chat_template": (), "media_io_kwargs": ({},), "mm_processor_kwargs": ({},)}
"""Unsupported fields of vLLM for ``/tokenize``, with the values that, like null, have no effect."""


class TokenizeRequest(Tolerant):
    """The body of ``POST /tokenize``: a prompt, or a conversation as for the chat route."""

    neutral = NEUTRAL_TOKENIZE

    model: TextField | None = None
    """A name of a model served; another gets a 404. Without it, the only model answers, or the one loaded first."""
    prompt: TextField | None = None
    """A text."""
    messages: Messages | None = None
    """Turns, as in a chat request."""
    add_special_tokens: bool | None = None
    """Add the special tokens that the model expects around a text; by default true for a ``prompt`` and false for
    ``messages``, since chat templates write them."""
    return_token_strs: bool | None = None
    """Also return each token as the vocabulary writes it."""
    add_generation_prompt: bool | None = None
    """End with the beginning of an answer; true by default, unless ``continue_final_message`` is true."""
    continue_final_message: bool | None = None
    """End within the last message, so that the model would continue it."""
    chat_template_kwargs: Variables | None = None
    """Further variables for the model's chat template."""
    tools: ToolsField | None = None
    """Tools, as in a chat request."""

    @model_validator(mode="after")
    def check_together(self) -> Self:
        """Check that the fields do not contradict each other."""
        if (self.prompt is None) == (self.messages is None):
            raise refuse("prompt", "send either 'prompt' or 'messages'")
        if self.messages is None:
            for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"):
                if getattr(self, name) is not None:
                    raise refuse(name, f"'{name}' is only for requests with 'messages'")
        if self.continue_final_message and self.add_generation_prompt:
            raise refuse("add_generation_prompt", "a prompt that continues the last message opens no answer")
        return self


class DetokenizeRequest(Strict):
    """The body of ``POST /detokenize``."""

    model: TextField | None = None
    """A name of a model served; another gets a 404. Without it, the only model answers, or the one loaded first."""
    tokens: Annotated[list[Token], Field(fail_fast=True)]
    """Token ids."""


class TokensReply(ResponseModel):
    """The answer to ``POST /tokenize``."""

    count: int
    """The number of tokens."""
    max_model_len: int
    """The largest number of tokens of a prompt and its answer together."""
    tokens: list[int]
    token_strs: list[str] | None
    """Each token as the vocabulary writes it, if requested."""


class TextReply(ResponseModel):
    """The answer to ``POST /detokenize``."""

    prompt: str
