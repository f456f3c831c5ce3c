"""The messages of processes that read request bodies; see `parallax_core.server.body_reader`."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, Protocol

import msgspec

from parallax_core.base.errors import BackendFailed, InvalidRequest, ParallaxError
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Request
from parallax_core.contracts.parser import CallForm, ParserSpec

LENGTH_BYTES = 4
"""The bytes at the beginning of a frame that give its length."""

MAX_QUOTED = 1000
"""The largest number of characters of a message or of a field's name."""


class UnknownModel(ParallaxError):
    """A request names a model that is not served here."""


class UnknownPart(ParallaxError):
    """A request refers to an item of a response that is not kept."""


class BodyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to read a body."""

    kind: str
    """A kind of body of a dialect; see `DialectSpec.bodies`. Besides these there are ``grammar``: a `Grammar` in
    MessagePack, to be checked; ``model``: a body of which only its model is read; ``plugin``: see `reader`."""
    body: bytes
    client: bytes = b""
    """An id of the client that sent it."""
    is_lenient: bool = False
    """Name unknown fields instead of refusing them."""
    max_length: int = 0
    """The longest sequence that can be served, in tokens; 0: not known."""
    names: tuple[str, ...] = ()
    """What clients may call the model besides its id; without a name, it is called by the first of these."""
    extra: bytes = b""
    """What else the dialect's reader has to know, in a form of its own."""
    reader: str = ""
    """The target of the `Ref` to a function of a plugin: for one of its routes to what reads the body, for another to
    what rewrites it first; empty: nothing does. See `HttpSurface.read` and `HttpSurface.rewrite_bodies`."""

    @property
    def size(self) -> int:
        """The bytes to read."""
        return len(self.body) + len(self.extra)


class ParserTraits(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of the parser of a model's outputs that matter for reading a request; see `ParserSpec`."""

    name: str = ""
    factory: str = ""
    """The target of the `Ref` that makes a parser; empty without a parser."""
    finds_calls: bool = False
    special_tokens: tuple[str, ...] = ()
    reasoning_end: str = ""
    reasoning_marks: tuple[str, str] | None = None
    may_force_calls: bool = True
    call_form: CallForm | None = None
    may_list_calls: bool = True
    """Whether a model may call tools of its own accord by a list, if it has no format for that; see `ResponseForm`."""

    @classmethod
    def of(cls, spec: ParserSpec) -> ParserTraits:
        """Return the traits of a parser."""
        tokens = tuple(spec.special_tokens)
        return cls(
            name=spec.name,
            factory=spec.factory.target,
            finds_calls=spec.finds_calls,
            special_tokens=tokens,
            reasoning_end=spec.reasoning_end,
            reasoning_marks=spec.reasoning_marks,
            may_force_calls=spec.may_force_calls,
            call_form=spec.call_form,
        )


class ResponseForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answers that a client asks for."""

    model: str
    num_answers: int
    """The number of answers to each prompt."""
    streams: bool = False
    includes_usage: bool = False
    """Whether a stream ends with the token counts."""
    logprobs: int | None = None
    """Return the log-probability of each token and of this number of most probable tokens; None: neither."""
    is_shown: bool = True
    """Whether the client wants output, and not only its prompt."""
    echoes: tuple[str, ...] = ()
    """The text with which the answers to each prompt begin; empty: no text."""
    length_field: str = "max_tokens"
    """The body's field that limits the tokens of an answer."""
    prompt_field: str = "prompt"
    """The body's field with the prompt."""
    prompt_end: str = ""
    """The end of a chat's prompt; see `AnswerInfo`."""
    tools: dict[str, str] = {}
    """The tools that the model may call; see `AnswerInfo`."""
    tool_fields: dict[str, str] = {}
    """By tool, the body's field with the schema of its arguments."""
    strict_tools: tuple[str, ...] = ()
    """The tools whose arguments have to follow their schemas, if the model calls them."""
    forced_call: str | None = None
    """The tool that the answer has to call; empty: any of them; None: it need not call any."""
    call_reader: str = ""
    """The target of what reads an answer as a call, in a form of the dialect: it gets the parser of the model and the
    tool, and returns a `Parser`. Empty: calls are in the format of the model, or in JSON."""
    lists_calls: bool = False
    """Whether a call is an item of a list in JSON, since the model has no format for calls, or an unknown one."""
    calls_come_first: bool = False
    """Whether calls can only begin an answer, since other answers have a form of their own."""
    allows_many_calls: bool = True
    """Whether an answer may have several tool calls."""
    max_reasoning: int | None = None
    """The largest number of tokens of the reasoning; None: not limited."""
    reasoning_end: tuple[int, ...] = ()
    """The tokens that end the reasoning, if it is limited."""
    fills_context: bool = False
    """Whether the answer is limited to fewer tokens than the client asked for, since the context holds no more."""
    grammar_field: str = "response_format"
    """The body's field that asks for structured output."""
    plan: bytes = b""
    """How the dialect writes the answer, in a form of its own; empty: the rest says all."""


class ParsedBody(msgspec.Struct, frozen=True, kw_only=True, tag="reading"):
    """A parsed body: the engine request that it makes for each of its prompts."""

    form: ResponseForm
    request: Request
    """The request without id, prompt and seed."""
    prompts: tuple[bytes, ...]
    """The token ids of each prompt; see `pack`."""
    seeds: tuple[int, ...]
    """The seed of each prompt."""

    def make_requests(self, name: str, waited_s: float = 0.0) -> Iterator[Request]:
        """Yield the requests, with ``waited_s`` as their waiting time; a long one takes milliseconds to make."""
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
        """The number of tokens of each prompt."""
        return [len(unpack(prompt)) for prompt in self.prompts]

    @property
    def is_single(self) -> bool:
        """Whether there is only one prompt."""
        return len(self.prompts) == 1


class DirectAnswer(msgspec.Struct, frozen=True, tag="written"):
    """The whole answer to a body that needs no engine."""

    body: bytes
    """JSON."""


class MoreNeeded(msgspec.Struct, frozen=True, tag="more"):
    """A body that has to be read again, with more in `BodyRequest.extra`; see `Service.read`."""

    asked: bytes
    """What the dialect's reader needs, in a form of its own."""


class RefusedBody(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """Why a body is refused."""

    kind: Literal["invalid", "model", "failed"]
    message: str
    param: str | None = None
    hint: str = ""

    @classmethod
    def of(cls, error: ParallaxError) -> RefusedBody:
        """Return the refusal for ``error``."""
        message, hint = make_sound(error.message), make_sound(error.hint)
        if isinstance(error, InvalidRequest):
            param = None if error.param is None else make_sound(error.param)
            return cls(kind="invalid", message=message, param=param, hint=hint)
        return cls(kind="model" if isinstance(error, UnknownModel) else "failed", message=message, hint=hint)

    def as_error(self) -> ParallaxError:
        """Return the error for this refusal."""
        if self.kind == "invalid":
            return InvalidRequest(self.message, self.param, self.hint)
        return (UnknownModel if self.kind == "model" else BackendFailed)(self.message, self.hint)


class BodyResult(msgspec.Struct, frozen=True):
    """The result of reading a body."""

    content: ParsedBody | DirectAnswer | MoreNeeded | RefusedBody
    ignored: tuple[str, ...] = ()
    """Unknown fields that were ignored, and what was left out."""


class ReaderSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame to a process: the model for which it reads bodies."""

    folder: str
    """The model's folder."""
    model_id: str
    bodies: dict[str, tuple[str, str]]
    """By kind of body, the targets of the `Ref` to its schema and to what reads it."""
    limit_s: float = 60.0
    """Seconds of preparation after which the process ends itself."""
    generation: str = "auto"
    """The source of the defaults for requests; see `read_generation`."""
    parser: ParserTraits | None = None
    """Of the parser of the model's outputs; None: its text is not parsed."""
    checks_grammars: bool = False
    """Whether the process is for grammars, and prepares the vocabulary for them."""


class ReaderReady(msgspec.Struct, frozen=True):
    """The first frame from a process: it is ready to read bodies, or cannot."""

    refusal: RefusedBody | None = None
    """The reason why it cannot; None if it is ready."""
    takes_grammars: bool = True
    """Whether grammars are possible with the model's tokenizer; true of a process that does not check them."""


class ReadJob(msgspec.Struct, frozen=True, kw_only=True):
    """Each later frame to a process, which answers it with a `BodyResult`."""

    ask: BodyRequest
    """The request, without its body."""
    size: int
    """The bytes of the body, which follows the frame unencoded, to save a copy."""
    limit_s: float
    """Seconds after which the process ends itself."""


class BodyReading(Protocol):
    """Reads request bodies."""

    async def start(self) -> None:
        """Get ready to read.

        Raises:
            ParallaxError: if it cannot; it is stopped then.
        """

    def start_others(self) -> None:
        """Start, without waiting for it, what reads more at once; called once the engine has started, too."""

    async def stop(self) -> None:
        """Stop at once; bodies that are not read yet are refused. Legal at any time."""

    @property
    def takes_grammars(self) -> bool:
        """Whether bodies may ask for a grammar with the model's tokenizer; true while that is not known."""

    async def read(self, ask: BodyRequest) -> BodyResult:
        """Read a body.

        Raises:
            Overloaded: if too many bodies wait already.
            ParallaxError: if the body cannot be read for a reason other than its content.
        """


def to_frame(message: msgspec.Struct) -> bytes:
    """Return the frame of a message: the length of the rest, then MessagePack."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def make_sound(text: str) -> str:
    """Return a text that may quote a client, cut to `MAX_QUOTED` and without unpaired surrogates."""
    return text[:MAX_QUOTED].encode(errors="replace").decode()


def pack(tokens: Sequence[int]) -> bytes:
    """Return token ids in the form of `ParsedBody.prompts`, which decodes many times faster than a list."""
    return array("i", tokens).tobytes()


def unpack(tokens: bytes) -> memoryview[int]:
    """Return the token ids of a packed prompt."""
    return memoryview(tokens).cast("i")
