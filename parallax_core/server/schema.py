"""What OpenAI's chat API sends and receives, as far as it is honoured; everything else is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MAX_SEED = 2**63 - 1
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024


class Strict(BaseModel):
    """No unknown fields, and no guessing: ``"1"`` is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _check_text(text: str) -> str:
    """Refuse what JSON can write and UTF-8 cannot: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"not valid Unicode: {error.reason} at character {error.start}"
        raise ValueError(message) from error
    return text


Text = Annotated[str, AfterValidator(_check_text)]
Stop = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class TextPart(Strict):
    """One part of a message's content."""

    type: Literal["text"]
    text: Text


class Message(Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]

    def as_turn(self) -> dict[str, str]:
        """Return the turn as chat templates want it; ``developer`` is OpenAI's newer word for ``system``."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(Strict):
    """Options that only matter when streaming."""

    include_usage: bool = False


NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_key": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields of OpenAI's API that are not supported yet, and the values that ask for nothing. Null always does."""


class ChatRequest(Strict):
    """The body of ``POST /v1/chat/completions``."""

    model: Text
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Text | None = None
    metadata: dict[Text, Text] | None = None

    @model_validator(mode="before")
    @classmethod
    def drop_neutral_fields(cls, body: Any) -> Any:  # noqa: ANN401 -- whatever the client sent
        """Drop fields that ask for nothing; what asks for something unsupported is refused as unknown."""
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if name not in NEUTRAL or not _asks_nothing(name, value)}

    @model_validator(mode="after")
    def check_together(self) -> ChatRequest:
        """Check what one field alone cannot show."""
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            message = "'max_tokens' and 'max_completion_tokens' say the same: send one of them"
            raise ValueError(message)
        if self.stream_options is not None and not self.stream:
            message = "'stream_options' is only for requests with 'stream': true"
            raise ValueError(message)
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, however they were written."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


def _asks_nothing(name: str, value: object) -> bool:
    same_kind = (neutral for neutral in NEUTRAL[name] if isinstance(neutral, bool) == isinstance(value, bool))
    return value is None or value in same_kind
