"""The bodies of requests to Ollama's API; fields that are not listed are refused by name."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from parallax_core.api import InvalidRequest

Format = Literal["", "json"] | dict[str, Any]
"""``json`` for any JSON, or a JSON Schema."""
Think = bool | Literal["low", "medium", "high"]
KeepAlive = str | float
"""How long Ollama keeps the model in memory; here it stays, so any value has no effect."""


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """The options that are supported; Ollama's names."""

    num_predict: int | None = None
    """The most tokens of the answer; below 0: no limit."""
    num_ctx: int | None = None
    """The tokens of the context, which must not be more than the model has here."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """The function of a call."""

    name: str
    arguments: dict[str, Any] = {}
    index: int | None = None


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call in an earlier answer."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A turn of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /api/chat``."""

    model: str
    messages: list[Message] = []
    tools: list[dict[str, Any]] | None = None
    think: Think | None = None
    format: Format | None = None
    options: Options = msgspec.field(default_factory=Options)
    stream: bool | None = None
    keep_alive: KeepAlive | None = None


class GenerateBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /api/generate``."""

    model: str
    prompt: str = ""
    system: str | None = None
    think: Think | None = None
    format: Format | None = None
    options: Options = msgspec.field(default_factory=Options)
    raw: bool | None = None
    """Continue the prompt as it is, without a chat template."""
    stream: bool | None = None
    keep_alive: KeepAlive | None = None


class EmbedBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /api/embed``."""

    model: str
    input: str | list[str]
    dimensions: int | None = None
    options: Options = msgspec.field(default_factory=Options)
    """Without effect, apart from ``num_ctx``: nothing is drawn."""
    keep_alive: KeepAlive | None = None


class ShowBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /api/show``."""

    model: str = ""
    name: str = ""
    """The older name of ``model``."""
    verbose: bool | None = None


EMPTY: tuple[object, ...] = (None, "", [], {})
"""Values of unsupported fields that ask for nothing."""
ANY = object()
"""Stands for every value of a field that cannot have an effect here."""
Neutral = dict[str, tuple[object, ...]]
NEUTRAL: Neutral = {"logprobs": (False,), "top_logprobs": (0,), "shift": (False, True), "truncate": (False, True)}
"""Unsupported fields of bodies, with the values that ask for nothing; no prompt is cut."""
NEUTRAL_OPTIONS: Neutral = {
    "embedding_only": (False,),
    "f16_kv": (True,),
    "logits_all": (False,),
    "low_vram": (False,),
    "main_gpu": (0,),
    "mirostat": (0,),
    "mirostat_eta": (ANY,),
    "mirostat_tau": (ANY,),
    "num_gpu": (-1,),
    "num_keep": (ANY,),
    "num_thread": (0,),
    "numa": (False,),
    "penalize_newline": (True,),
    "repeat_last_n": (-1,),
    "tfs_z": (1,),
    "typical_p": (1,),
    "use_mlock": (False,),
    "use_mmap": (True,),
    "vocab_only": (False,),
}
"""The same for options; those of mirostat and of cutting the context need others that are refused, or never happen."""


NEEDED = {"input"}
"""Fields that have to be there, whose empty value the server refuses itself."""


def read(data: bytes, kind: type[msgspec.Struct]) -> Any:  # noqa: ANN401 -- an instance of `kind`
    """Return a body; fields with an empty value are as if they were missing.

    Raises:
        InvalidRequest: if it is not valid; it names the field.
    """
    try:
        content = msgspec.json.decode(data)
        if isinstance(content, dict):
            content = _drop_empty(content)
        return msgspec.convert(content, kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid for this route: {error}") from None


def _drop_empty(content: dict[str, Any]) -> dict[str, Any]:
    kept = {
        name: value
        for name, value in content.items()
        if name in NEEDED or not (value in EMPTY or _asks_nothing(value, NEUTRAL.get(name, ())))
    }
    if isinstance(options := kept.get("options"), dict):
        kept["options"] = _drop_options(options)
    if isinstance(messages := kept.get("messages"), list):
        kept["messages"] = [_drop_empty(each) if isinstance(each, dict) else each for each in messages]
    return kept


def _drop_options(options: dict[str, Any]) -> dict[str, Any]:
    neutral = dict(NEUTRAL_OPTIONS)
    if options.get("repeat_penalty") in (None, 1):
        neutral["repeat_last_n"] = (ANY,)
    return {
        name: value
        for name, value in options.items()
        if not (value is None or _asks_nothing(value, neutral.get(name, ())))
    }


def _asks_nothing(value: object, neutral: tuple[object, ...]) -> bool:
    """Return whether a value is one of those; true is not 1, nor false 0."""
    return any(each is ANY or (value == each and isinstance(value, bool) == isinstance(each, bool)) for each in neutral)
