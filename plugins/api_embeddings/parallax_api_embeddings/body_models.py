"""The schemas of embedding requests and of their responses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from parallax_chat_requests.fields import CountField, TokensField
from parallax_chat_requests.neutral_fields import Tolerant
from parallax_core.api.bodies import ResponseModel, TextField

MAX_INPUTS = 2048
"""The most inputs of a request in OpenAI's API."""
Inputs = Annotated[list[TextField], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
TokenInputs = Annotated[list[TokensField], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]


class EmbeddingRequest(Tolerant):
    """The body of ``POST /v1/embeddings``."""

    model: TextField | None = None
    """A name of a model served; another gets a 404. Without it, the only model answers, or the one loaded first."""
    input: TextField | Inputs | TokensField | TokenInputs
    """The text to embed: a string, token ids, or a list of up to 2048 of either."""
    encoding_format: Literal["float", "base64"] | None = None
    """``float``, the default: a list of numbers; ``base64``: their bytes in single precision, little endian."""
    dimensions: CountField | None = None
    """Return only this many leading numbers of each embedding; only for models made for that."""
    user: TextField | None = None
    """A label for the client's own use, without effect on the answer."""
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """Requests with lower numbers are served first; 0 by default. Numbers below ``min_priority``, 0 by default, need
    a key of the role ``admin``."""
    timeout: Annotated[float, Field(gt=0, le=86400)] | None = None
    """Seconds after its arrival at which the request ends with an error; by default the server's
    ``default_timeout``."""
    cache_salt: Annotated[TextField, Field(min_length=1, max_length=256)] | None = None
    """Share cached prompts only with the client's requests of the same salt; by default with all of its own that have
    none. Each API key has a cache of its own."""


class TextEmbedding(ResponseModel, kw_only=True):
    """One embedding."""

    object: Literal["embedding"] = "embedding"
    index: int
    """The index of its input."""
    embedding: list[float] | str
    """Its numbers, or their bytes in base64."""


class EmbeddingUsage(ResponseModel):
    """The token counts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingReply(ResponseModel, kw_only=True):
    """The response of ``POST /v1/embeddings``."""

    object: Literal["list"] = "list"
    model: str
    usage: EmbeddingUsage
    data: list[TextEmbedding]
    """An embedding for each input, in order."""
