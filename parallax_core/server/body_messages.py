"""What whoever reads the bodies of requests is asked and answers; see `parallax_core.server.body_reader`."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, Protocol

import msgspec

from parallax_core.base.errors import BackendFailed, InvalidRequest, ParallaxError
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Request

BodyKind = Literal["chat", "completion", "tokenize", "detokenize"]
"""What a body is."""

LENGTH_BYTES = 4
"""At the beginning of a frame."""

MAX_QUOTED = 1000
"""The most characters of a message, or of the name of a field."""


class UnknownModel(ParallaxError):
    """A request names a model that is not served here."""


class BodyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A body to be read."""

    kind: BodyKind
    body: bytes
    is_lenient: bool = False
    """Name unknown fields instead of refusing them."""
    max_length: int = 0
    """The longest sequence that can be served, in tokens; 0: what the model was made for."""


class ResponseForm(msgspec.Struct, frozen=True, kw_only=True):
    """How a client wants its answers."""

    model: str
    num_answers: int
    """To each prompt."""
    streams: bool = False
    includes_usage: bool = False
    """A stream ends with the token counts."""
    logprobs: int | None = None
    """Give the log-probability of each token, and of so many most probable ones; None: neither."""
    is_shown: bool = True
    """Whether the client wants any output, and not only its prompt."""
    echoes: tuple[str, ...] = ()
    """What each answer to a prompt begins with, prompt by prompt; empty: nothing."""
    length_field: str = "max_tokens"
    """The field of the body for the most tokens of an answer."""
    prompt_field: str = "prompt"
    """The field of the body for the prompt."""


class ParsedBody(msgspec.Struct, frozen=True, kw_only=True, tag="reading"):
    """What a body asks an engine for: the same of each of its prompts."""

    form: ResponseForm
    request: Request
    """With neither id nor prompt nor seed."""
    prompts: tuple[bytes, ...]
    """The token ids of each; see `pack`."""
    seeds: tuple[int, ...]
    """One for each prompt."""

    def make_requests(self, name: str, waited_s: float = 0.0) -> Iterator[Request]:
        """Yield the requests, which had waited for so many seconds; to make one takes milliseconds if it is long."""
        sampling = self.request.sampling
        for index, (prompt, seed) in enumerate(zip(self.prompts, self.seeds, strict=True)):
            yield replace(
                self.request,
                id=RequestId(name if self.is_single else f"{name}-{index}"),
                prompt=tuple(unpack(prompt)),
                sampling=msgspec.structs.replace(sampling, seed=seed),
                waited_s=waited_s,
            )

    @property
    def lengths(self) -> list[int]:
        """The tokens of each prompt."""
        return [len(unpack(prompt)) for prompt in self.prompts]

    @property
    def is_single(self) -> bool:
        """Whether there is one prompt."""
        return len(self.prompts) == 1


class DirectAnswer(msgspec.Struct, frozen=True, tag="written"):
    """The whole answer to a body, for which no engine is needed."""

    body: bytes
    """JSON."""


class RefusedBody(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """Why a body is refused."""

    kind: Literal["invalid", "model", "failed"]
    message: str
    param: str | None = None
    hint: str = ""

    @classmethod
    def of(cls, error: ParallaxError) -> RefusedBody:
        """Return what says the same as ``error``."""
        message, hint = make_sound(error.message), make_sound(error.hint)
        if isinstance(error, InvalidRequest):
            param = None if error.param is None else make_sound(error.param)
            return cls(kind="invalid", message=message, param=param, hint=hint)
        return cls(kind="model" if isinstance(error, UnknownModel) else "failed", message=message, hint=hint)

    def as_error(self) -> ParallaxError:
        """Return the error it stands for."""
        if self.kind == "invalid":
            return InvalidRequest(self.message, self.param, self.hint)
        return (UnknownModel if self.kind == "model" else BackendFailed)(self.message, self.hint)


class BodyResult(msgspec.Struct, frozen=True):
    """What came of a body."""

    content: ParsedBody | DirectAnswer | RefusedBody
    ignored: tuple[str, ...] = ()
    """Unknown fields that were ignored."""


class ReaderSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame to a process: what it reads bodies for."""

    folder: str
    """Of the model."""
    model_id: str
    limit_s: float
    """After so many seconds of preparing it ends."""
    generation: str = "auto"
    """What holds where a request leaves a choice open; see `read_generation`."""


class ReaderReady(msgspec.Struct, frozen=True):
    """The first frame from a process: it reads bodies from now on."""

    refusal: RefusedBody | None = None
    """Or why it cannot."""


class ReadJob(msgspec.Struct, frozen=True, kw_only=True):
    """Every further frame to a process, which answers with a `BodyResult`."""

    ask: BodyRequest
    """Without its body."""
    size: int
    """Of the body, which follows as it is: so it is copied only where it has to be."""
    limit_s: float
    """After so many seconds it ends."""


class BodyReading(Protocol):
    """Reads bodies."""

    async def start(self) -> None:
        """Become ready.

        Raises:
            ParallaxError: if it cannot; it is stopped then.
        """

    async def stop(self) -> None:
        """End whatever it does; what is not read yet is refused. Legal at any time."""

    async def read(self, ask: BodyRequest) -> BodyResult:
        """Read one.

        Raises:
            Overloaded: if too many wait to be read already.
            ParallaxError: if it cannot be read for another reason than what is in it.
        """


def to_frame(message: msgspec.Struct) -> bytes:
    """Return a message as it goes to a process, or comes from one: the length of the rest, and MessagePack."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def make_sound(text: str) -> str:
    """Return a text, which may quote anything a client sent, short enough and without halves of surrogate pairs."""
    return text[:MAX_QUOTED].encode(errors="replace").decode()


def pack(tokens: Sequence[int]) -> bytes:
    """Return token ids as `ParsedBody.prompts` holds them, which is read many times as fast as a list."""
    return array("i", tokens).tobytes()


def unpack(tokens: bytes) -> memoryview[int]:
    """Return the token ids of a packed prompt."""
    return memoryview(tokens).cast("i")
