"""The schemas of request bodies in OpenAI's API; unsupported fields are refused by name."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from parallax_chat_requests.chat_messages import (
    AllowedChoice,
    Messages,
    NamedTool,
    Tool,
    ToolChoice,
    ToolsField,
    check_tools,
)
from parallax_chat_requests.fields import (
    Answers,
    Biases,
    CountField,
    Identifier,
    Labels,
    Penalty,
    SeedField,
    ShareField,
    Stops,
    Token,
    Top,
    Variables,
)
from parallax_chat_requests.neutral_fields import Neutral, Tolerant
from parallax_chat_requests.structured_output import ChoiceTexts, ResponseFormat, StructuredOutputs
from parallax_core.api.bodies import TextField, refuse

STRUCTURED = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
"""The fields that ask for structured output."""

NEUTRAL_VLLM: Neutral = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": ({},),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}
"""Unsupported fields of vLLM for generated text, with the values that, like null, have no effect: programs that were
written for it send whole sets of them."""

NEUTRAL_CHAT: Neutral = {
    **NEUTRAL_VLLM,
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (True,),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": ({}, {"mode": "implicit"}),
    "prompt_cache_retention": ("in_memory",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""The same for a chat request, of OpenAI and of vLLM."""


def _read_zero(value: object) -> object:
    """Return false for 0, which other routes have for the same."""
    return False if value == 0 else value


def _read_empty(value: object) -> object:
    """Return nothing for an object that asks for nothing."""
    return None if isinstance(value, dict) and all(each in (None, False) for each in value.values()) else value


class StreamOptions(Tolerant):
    """Options that only matter when streaming."""

    place = "stream_options."
    neutral = {"continuous_usage_stats": (False,), "include_obfuscation": (False,)}  # noqa: RUF012 -- as in every body

    include_usage: bool | None = None


class Sampled(Tolerant):
    """The fields that all requests for generated text have in OpenAI's APIs."""

    model: TextField | None = None
    """A name of a model served; another gets a 404. Without it, the only model answers, or the one loaded first."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """0 to 2; 0, like anything below a millionth, always takes the most probable token."""
    top_p: ShareField | None = None
    """Keep the most probable tokens whose probabilities sum to at least this; 0 to 1, and 0 keeps one."""
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """Keep the k most probable tokens; 0 and -1 keep all."""
    min_p: ShareField | None = None
    """Keep the tokens that are at least this fraction as probable as the most probable one; 0 to 1."""
    seed: SeedField | None = None
    """The same seed gives the same answer, alone or among other requests."""
    presence_penalty: Penalty | None = None
    """-2 to 2; subtracted from the logit of every token in the answer."""
    frequency_penalty: Penalty | None = None
    """-2 to 2; subtracted from a token's logit for each time it occurs in the answer."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    """Above 1 makes tokens of prompt and answer less likely; 0.01 to 10."""
    stop: Stops | None = None
    """One string or up to 16; the answer ends before the first of them."""
    stream: bool | None = None
    """Send the answer as server-sent events, as it is generated."""
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """Requests with lower numbers are served first; 0 by default, and waiting makes every request more urgent. Numbers
    below ``min_priority``, 0 by default, need a key of the role ``admin``."""
    timeout: Annotated[float, Field(gt=0, le=86400)] | None = None
    """Seconds after its arrival at which the request ends with an error; by default the server's
    ``default_timeout``."""
    cache_salt: Annotated[TextField, Field(min_length=1, max_length=256)] | None = None
    """Share cached prompts only with the client's requests of the same salt; by default with all of its own that have
    none. Each API key has a cache of its own."""
    user: TextField | None = None
    """A label for the client's own use, without effect on the answer."""


class Generation(Sampled):
    """The fields of chat and completion requests."""

    neutral = NEUTRAL_VLLM

    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """The largest number of tokens of an answer."""
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """The smallest number of tokens of an answer: before that, no end of text and no stop token is drawn, and no string
    of ``stop`` ends it."""
    n: Answers | None = None
    """The number of answers, drawn independently; 1 to 128."""
    logit_bias: Biases | None = None
    """Values to add to the logits of tokens, by token id as a string; -100 to 100 each."""
    stop_token_ids: Annotated[list[Token], Field(max_length=64)] | None = None
    """Token ids that end an answer; they have no text."""
    ignore_eos: bool | None = None
    """Continue after the model's end of text; only the length, ``stop`` and ``stop_token_ids`` end an answer."""
    stream_options: StreamOptions | None = None
    """``include_usage``: send a last event with the token counts; ``include_obfuscation`` and
    ``continuous_usage_stats``: only false."""
    response_format: ResponseFormat | None = None
    """The form of the answers: ``{"type": "text"}``, ``{"type": "json_object"}``, or ``{"type": "json_schema",
    "json_schema": {"name": NAME, "schema": SCHEMA}}``."""
    structured_outputs: Annotated[StructuredOutputs | None, BeforeValidator(_read_empty)] = None
    """vLLM's form of the same, with one of ``json`` (a schema), ``regex``, ``choice`` (a list of texts), ``grammar``
    (Lark or EBNF) and ``json_object``. With it, or with a ``response_format``: ``disable_any_whitespace``, or a
    ``whitespace_pattern``, for JSON that has other white space than at most one space after each ``:`` and ``,``."""
    guided_json: Variables | TextField | None = None
    """vLLM's older name of ``structured_outputs.json``."""
    guided_regex: TextField | None = None
    """vLLM's older name of ``structured_outputs.regex``."""
    guided_choice: ChoiceTexts | None = None
    """vLLM's older name of ``structured_outputs.choice``."""
    guided_grammar: TextField | None = None
    """vLLM's older name of ``structured_outputs.grammar``."""

    @model_validator(mode="after")
    def check_structure(self) -> Self:
        """Check that at most one field asks for structured output, and that the answer may end."""
        fields = self.list_structured()
        if len(fields) > 1:
            raise refuse(fields[1], f"'{fields[0]}' and '{fields[1]}' both set the form of the answer: send only one")
        if self.structured_outputs is not None and not fields:
            raise refuse("structured_outputs", "'structured_outputs' has no form of the answer, such as 'json'")
        if fields and self.ignore_eos:
            raise refuse(
                "ignore_eos", f"with '{fields[0]}', an answer ends where its form does: leave 'ignore_eos' out"
            )
        return self

    def list_structured(self) -> list[str]:
        """Return the names of the fields that ask for structured output."""
        return [name for name in STRUCTURED if self._has_form(name)]

    def _has_form(self, name: str) -> bool:
        value = getattr(self, name)
        if isinstance(value, ResponseFormat):
            return value.type != "text"
        return value.has_form if isinstance(value, StructuredOutputs) else value is not None

    @model_validator(mode="after")
    def check_stream(self) -> Self:
        """Check that the fields do not contradict each other."""
        if self.stream_options is not None and self.stream_options.include_usage and not self.stream:
            raise refuse("stream_options", "'stream_options' is only for requests with 'stream': true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, given as one string or a list."""
        given = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        return tuple(each for each in given if each)

    @property
    def num_answers(self) -> int:
        """The number of answers."""
        return self.n or 1


class ChatRequest(Generation):
    """The body of ``POST /v1/chat/completions``."""

    neutral = NEUTRAL_CHAT

    messages: Messages
    """Turns with ``role`` (``system``, ``developer``, ``user``, ``assistant``, ``tool``) and ``content`` (a string, or
    parts of type ``text``); those of the assistant may have ``tool_calls`` and ``reasoning_content``, and those of a
    tool have ``tool_call_id``."""
    max_tokens: CountField | None = None
    """The largest number of tokens of an answer; by default the authors' recommendation, or the rest of the context."""
    max_completion_tokens: CountField | None = None
    """OpenAI's newer name of ``max_tokens``."""
    logprobs: Annotated[bool | None, BeforeValidator(_read_zero)] = None
    """Return the log-probability of each token of the answer."""
    top_logprobs: Top | None = None
    """The number of most probable tokens to return at each position; 0 to 20, only with ``logprobs``."""
    chat_template_kwargs: Variables | None = None
    """Up to 256 further variables for the model's chat template."""
    tools: ToolsField | None = None
    """Up to 128 functions that the model may call."""
    tool_choice: ToolChoice | None = None
    """``auto``, the default with ``tools``, lets the model choose; ``required`` or a named function forces a call,
    whose arguments follow the schema; ``none`` hides the tools from the model; ``allowed_tools`` shows it only some."""
    parallel_tool_calls: bool | None = None
    """False keeps only the first call of an answer; true by default."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """How much the model may reason, if its chat template has such a setting; where it can only be turned on or off,
    ``none`` turns it off. Without effect on a model that does not reason."""
    max_reasoning_tokens: CountField | None = None
    """The largest number of tokens of the reasoning: after them the server ends it, and the model begins its answer.
    Only for a single answer. Without effect on a model that does not reason."""
    metadata: Labels | None = None
    """Up to 16 labels for the client's own use, without effect on the answer; names of up to 64 characters, values of
    up to 512."""
    safety_identifier: Identifier | None = None
    """The newer name of ``user``, of up to 128 characters."""
    prompt_cache_key: TextField | None = None
    """A label without effect: all prompts of a client share its prefix cache; see ``cache_salt``."""

    @model_validator(mode="after")
    def check_together(self) -> Self:
        """Check that the fields do not contradict each other."""
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise refuse("max_tokens", "'max_tokens' and 'max_completion_tokens' mean the same: send only one of them")
        if self.top_logprobs and not self.logprobs:
            raise refuse("top_logprobs", "'top_logprobs' is only for requests with 'logprobs': true")
        if self.max_reasoning_tokens is not None and self.num_answers > 1:
            raise refuse("max_reasoning_tokens", "'max_reasoning_tokens' is only for a single answer: leave out 'n'")
        check_tools(self.tools, self.tool_choice)
        guided = [name for name in self.list_structured() if name != "response_format"]
        if guided and self.offered_tools:
            message = f"'{guided[0]}' leaves no room for tool calls: leave it out, or send 'tool_choice': 'none'"
            raise refuse(guided[0], message)
        return self

    @property
    def forced_call(self) -> str | None:
        """The tool that the answer has to call; empty: any of them; None: it need not call any."""
        if isinstance(self.tool_choice, NamedTool):
            return self.tool_choice.function.name
        mode = self.tool_choice.allowed_tools.mode if isinstance(self.tool_choice, AllowedChoice) else self.tool_choice
        return "" if mode == "required" else None

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools that the model may call."""
        tools = self.tools or []
        if isinstance(self.tool_choice, AllowedChoice):
            names = {pick.function.name for pick in self.tool_choice.allowed_tools.tools}
            return [tool for tool in tools if tool.function.name in names]
        return [] if self.tool_choice == "none" else tools
