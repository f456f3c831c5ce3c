"""Reads request bodies in child processes: parses JSON, checks fields, renders templates, tokenizes."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from parallax_core.base.errors import InvalidRequest, ParallaxError
from parallax_core.base.refs import Ref
from parallax_core.contracts.grammar import Grammar
from parallax_core.models.chat_template import PromptEnding
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import (
    BodyKind,
    BodyRequest,
    BodyResult,
    DirectAnswer,
    HistoryNeeded,
    ParsedBody,
    ParserTraits,
    RefusedBody,
    UnknownModel,
    make_sound,
    unpack,
)
from parallax_core.server.capabilities import lists_calls
from parallax_core.server.described_tools import describe_tools, encode_described, write_calls
from parallax_core.server.embedding_models import EmbeddingRequest
from parallax_core.server.embedding_request import read_embedding
from parallax_core.server.engine_request import check_tokens, read_chat, read_completion
from parallax_core.server.grammar_check import check_grammar
from parallax_core.server.message_models import CountTokensRequest, MessagesRequest
from parallax_core.server.message_request import count_tokens, read_messages
from parallax_core.server.model_name import find_model
from parallax_core.server.request_models import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from parallax_core.server.responses.body_models import CompactRequest, ResponsesRequest
from parallax_core.server.responses.request import read_responses
from parallax_core.server.strict_json import read_body
from parallax_core.server.tool_schemas import check_answer
from parallax_core.server.unknown_fields import IGNORED, LEFT_OUT, MOST_NAMED

ReadContent = ParsedBody | DirectAnswer | HistoryNeeded


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads bodies for one model."""

    text: ModelTokenizer
    model_id: str
    parser: ParserTraits | None = None
    """Of the parser of the model's outputs; None: its text is not parsed."""

    def answer(self, ask: BodyRequest) -> BodyResult:
        """Read a body and return the result; faults of the body become a refusal."""
        ignored: dict[str, None] = {}
        context = contextvars.copy_context()
        context.run(IGNORED.set, ignored if ask.is_lenient else None)
        context.run(LEFT_OUT.set, ignored)
        try:
            content: ParsedBody | DirectAnswer | HistoryNeeded | RefusedBody = context.run(self._read, ask)
        except ParallaxError as error:
            content = RefusedBody.of(error)
        except MemoryError:
            message = "reading the request takes more memory than it may"
            content = RefusedBody(kind="invalid", message=message, hint="shorten it")
        return BodyResult(content, tuple(map(make_sound, islice(ignored, MOST_NAMED))))

    def _read(self, ask: BodyRequest) -> ReadContent:
        if ask.kind == "grammar":
            return _write(seconds=check_grammar(self.text.grammars, msgspec.msgpack.decode(ask.body, type=Grammar)))
        if ask.kind == "model":
            return _write(model=find_model(ask.body))
        if ask.kind == "plugin":
            read_other: Ref[Callable[[bytes], object]] = Ref(ask.reader)
            return DirectAnswer(msgspec.msgpack.encode(read_other.load()(ask.body)))
        schema, read = READ[ask.kind]
        body = read_body(_rewrite(ask), schema)
        names = (*ask.names, self.model_id)
        body.model = body.model or names[0]
        if body.model not in names:
            known = ", ".join(map(repr, names))
            raise UnknownModel(f"the model '{body.model}' does not exist", f"this server has {known}")
        return read(self, body, ask)


def _rewrite(ask: BodyRequest) -> bytes:
    """Return the body that the route reads, which a plugin may have rewritten."""
    if not ask.reader:
        return ask.body
    rewrite: Ref[Callable[[bytes], bytes]] = Ref(ask.reader)
    return rewrite.load()(ask.body)


class LocalReader:
    """Reads bodies in the calling task, for tests and measurements; it blocks the event loop."""

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader

    async def start(self) -> None:
        """Do nothing."""

    def start_others(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    @property
    def takes_grammars(self) -> bool:
        """Whether bodies may ask for a grammar; see `BodyReading`."""
        return self._reader.text.grammars.can_prepare()

    async def read(self, ask: BodyRequest) -> BodyResult:
        """Read a body; see `BodyReading`."""
        return await check_answer(self._reader.answer(ask), self._check)

    async def _check(self, grammar: Grammar) -> None:
        self._reader.text.grammars.compile(grammar)


def _read_chat(reader: BodyReader, body: ChatRequest, ask: BodyRequest) -> ParsedBody:
    return _check_lengths(read_chat(reader.text, body, reader.parser), ask, "messages", "shorten the conversation")


def _read_completion(reader: BodyReader, body: CompletionRequest, ask: BodyRequest) -> ParsedBody:
    return _check_lengths(read_completion(reader.text, body), ask, "prompt", "shorten it")


def _read_embedding(reader: BodyReader, body: EmbeddingRequest, ask: BodyRequest) -> ParsedBody:
    return _check_lengths(read_embedding(reader.text, body), ask, "input", "shorten it")


def _read_messages(reader: BodyReader, body: MessagesRequest, ask: BodyRequest) -> ParsedBody:
    return _check_lengths(
        read_messages(reader.text, body, ask, reader.parser), ask, "messages", "shorten the conversation"
    )


def _read_responses(reader: BodyReader, body: ResponsesRequest, ask: BodyRequest) -> ParsedBody | HistoryNeeded:
    reading = read_responses(reader.text, body, ask, reader.parser)
    if isinstance(reading, HistoryNeeded):
        return reading
    return _check_lengths(reading, ask, "input", "shorten the conversation")


def _read_compact(reader: BodyReader, body: CompactRequest, ask: BodyRequest) -> ParsedBody | HistoryNeeded:
    return _read_responses(reader, body.as_request(), ask)


def _count_tokens(reader: BodyReader, body: CountTokensRequest, ask: BodyRequest) -> DirectAnswer:
    return _write(input_tokens=count_tokens(reader.text, body, ask, reader.parser))


def _check_lengths(reading: ParsedBody, ask: BodyRequest, param: str, hint: str) -> ParsedBody:
    """Refuse prompts that are too long for the model, before they reach an engine."""
    longest = max(len(unpack(prompt)) for prompt in reading.prompts)
    if ask.max_length and longest >= ask.max_length:
        message = f"the prompt has {longest} tokens; this model can hold {ask.max_length} in all"
        raise InvalidRequest(message, param, hint)
    return reading


def _tokenize(reader: BodyReader, body: TokenizeRequest, ask: BodyRequest) -> DirectAnswer:
    text = reader.text
    if body.messages is None:
        special = body.add_special_tokens is not False
        tokens = text.encode(body.prompt or "", special=special)
    else:
        turns = [message.as_turn() for message in body.messages]
        continues = bool(body.continue_final_message)
        opens = not continues if body.add_generation_prompt is None else body.add_generation_prompt
        ending = PromptEnding(opens_answer=opens, continues_last=continues)
        special = bool(body.add_special_tokens)
        tools = [tool.as_template_value() for tool in body.tools or ()]
        encode = partial(text.encode_chat, settings=body.chat_template_kwargs, ending=ending, special=special)
        as_list = lists_calls(text, reader.parser)
        if tools and (as_list or not text.takes_tools):
            tokens = encode_described(turns, describe_tools(tools, None, as_list=as_list), encode)
        else:
            tokens = encode(turns if text.takes_tools else write_calls(turns), tools=tools)
    pieces = list(map(text.vocabulary.find_piece, tokens)) if body.return_token_strs else None
    most = ask.max_length or text.context_length
    return _write(count=len(tokens), max_model_len=most, tokens=tokens, token_strs=pieces)


def _detokenize(reader: BodyReader, body: DetokenizeRequest, ask: BodyRequest) -> DirectAnswer:
    del ask
    check_tokens(reader.text, body.tokens, "tokens")
    return _write(prompt=reader.text.show(body.tokens))


def _write(**fields: object) -> DirectAnswer:
    return DirectAnswer(msgspec.json.encode(fields))


READ: Mapping[BodyKind, tuple[Any, Callable[[BodyReader, Any, BodyRequest], ReadContent]]] = {
    "chat": (ChatRequest, _read_chat),
    "completion": (CompletionRequest, _read_completion),
    "embedding": (EmbeddingRequest, _read_embedding),
    "messages": (MessagesRequest, _read_messages),
    "count_tokens": (CountTokensRequest, _count_tokens),
    "responses": (ResponsesRequest, _read_responses),
    "compact": (CompactRequest, _read_compact),
    "tokenize": (TokenizeRequest, _tokenize),
    "detokenize": (DetokenizeRequest, _detokenize),
}
"""By kind of body: its schema, and the function that reads it."""
