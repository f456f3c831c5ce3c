"""Runs a server in this process over a toy engine, and computes its expected answers."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import msgspec
from starlette.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from parallax_api_embeddings.body_models import EmbeddingReply
from parallax_api_openai.chat_replies import ChatChunk, ChatReply
from parallax_api_openai.completion_replies import CompletionReply
from parallax_api_openai.stop_models import StopReply
from parallax_api_tokenize.body_models import TextReply, TokensReply
from parallax_core.api import Grammar, InvalidRequest, Sampling
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.grammar import CompiledGrammar, ModelGrammars
from parallax_core.models.chat_template import ANSWER, PromptEnding, Tools, Turns
from parallax_core.models.generation_config import RequestDefaults
from parallax_core.models.grammars import find_library
from parallax_core.models.output_parser import OutputParser
from parallax_core.models.pooling import EmbeddingConfig
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.node.routing.router import Router
from parallax_core.server.app import make_app
from parallax_core.server.body_messages import BodyReading, ParserTraits
from parallax_core.server.body_reader import BodyReader
from parallax_core.server.drain import Drain
from parallax_core.server.meters import Meters
from parallax_core.server.options import ServerOptions
from parallax_core.server.quota import Quota
from parallax_core.server.response_models import ErrorReply, ResponseModel
from parallax_core.server.served_models import ServedModels
from parallax_core.server.service import Service
from parallax_core.testing.toy import Toy
from tests.support.local_reader import LocalReader
from tests.unit.server.dialects import BODIES, make_plugins

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,!?"
TOY = Toy(("full",), vocab=len(ALPHABET))


class Letters:
    """A tokenizer with one token per letter, in place of `ModelTokenizer`; greedy unless told otherwise."""

    sampling = Sampling(temperature=0)
    defaults = RequestDefaults(sampling)
    stop_ids = frozenset[int]()
    vocab_size = len(ALPHABET)
    context_length = 0
    can_chat = True
    can_embed = False
    embedding_config = EmbeddingConfig("last", normalizes=False, dimensions=None)

    @cached_property
    def grammars(self) -> ModelGrammars:
        """The compiler of grammars over the letters, for the ``stop_ids`` at its first use."""
        vocab = {letter.replace(" ", "Ġ"): number for number, letter in enumerate(ALPHABET)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "tokenizer.json"
            tokenizer.save(str(file))
            grammars = find_library().open_model(file, self.vocab_size, self.stop_ids)
            grammars.prepare()
        return grammars

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar; see `GrammarCompiler`."""
        return self.grammars.compile(grammar)

    @property
    def vocabulary(self) -> Letters:
        return self

    def encode_chat(
        self,
        turns: Turns,
        settings: Mapping[str, Any] | None = None,
        ending: PromptEnding = ANSWER,
        *,
        tools: Tools = (),
        special: bool = False,
    ) -> tuple[int, ...]:
        """Join the turns; tools and the settings ``suffix``, ``reasoning_effort`` and ``opening`` are appended.

        The setting ``forbidden`` is refused.
        """
        settings = settings or {}
        if "forbidden" in settings:
            raise InvalidRequest("the template refuses", "messages")
        opening = settings.get("opening", "") if ending.opens_answer else ""
        text = "".join(turn["content"] or "" for turn in turns) + "".join(tool["function"]["name"] for tool in tools)
        text += settings.get("suffix", "") + settings.get("reasoning_effort", "") + opening
        return self.encode(text, special=special)

    def encode(self, text: str, param: str = "prompt", *, special: bool = False) -> tuple[int, ...]:
        """Return a token for each letter; letters outside the alphabet share the tokens of others."""
        return tuple(found if (found := ALPHABET.find(letter)) >= 0 else ord(letter) % len(ALPHABET) for letter in text)

    def decode(self, tokens: Sequence[int], *, shown: frozenset[int] = frozenset()) -> str:
        return "".join(ALPHABET[token] for token in tokens if token not in self.stop_ids)

    def find_special(self, names: Collection[str]) -> frozenset[int]:
        return frozenset()

    takes_tools = True

    def template_uses(self, name: str) -> bool:
        return name == "reasoning_effort"

    def show(self, tokens: int | Sequence[int]) -> str:
        return ALPHABET[tokens] if isinstance(tokens, int) else "".join(map(self.show, tokens))

    def find_piece(self, token: int) -> str:
        return f"<{ALPHABET[token]}>"

    def find_bytes(self, token: int) -> bytes:
        return ALPHABET[token].encode()


def answer(prompt: str, length: int, sampling: Sampling = Letters.sampling, choice: int = 0) -> str:
    """Return the answer of the toy to a single request."""
    letters = Letters()
    return letters.decode(TOY.continuation(letters.encode(prompt), length, sampling, choice))


class Site:
    """A server in this process whose engine and stage are accessible to tests."""

    def __init__(
        self,
        options: ServerOptions | None = None,
        reader: BodyReading | None = None,
        parser: OutputParser | None = None,
        *,
        pipeline: PipelineOptions | None = None,
        backlog: UnreadOutput | None = None,
    ) -> None:
        self.stage = TOY.open(num_pages=200, context=400, max_batch_tokens=64)
        self.text = Letters()
        pipeline = replace(pipeline or PipelineOptions(), grammars=self.text)
        self.engine = PipelineEngine(LocalExecutor([lambda: self.stage]), self.text.decode, pipeline)
        self.drain = Drain()
        self.router = Router([self.engine], LeastPendingTokens(), lambda: 400)
        traits = ParserTraits.of(parser.spec) if parser else ParserTraits(finds_calls=True, reasoning_end=".")
        self.reader = reader or LocalReader(BodyReader(self.text, "toy", BODIES, traits))  # type: ignore[arg-type]
        self.quota = Quota(options)
        self.backlog = backlog or UnreadOutput()
        self.service = Service(
            "toy",
            self.router,
            self.text,  # type: ignore[arg-type]
            self.reader,
            Meters(),
            find_max_length=lambda: 400,
            quota=self.quota,
            backlog=self.backlog,
            parser=parser,
            options=options or ServerOptions(),
        )
        self.models = ServedModels.only(self.service)
        self.prepare()
        self.app = make_app(self.models, options or ServerOptions(), self.drain, make_plugins())
        self.client = TestClient(self.app, raise_server_exceptions=False)

    def prepare(self) -> None:
        """Add to the models before the application is made of them."""

    def __enter__(self) -> Self:
        self.client.__enter__()
        self.client.portal.call(self.router.start)  # type: ignore[union-attr]
        return self

    def __exit__(self, *_: object) -> None:
        self.client.portal.call(self.router.stop)  # type: ignore[union-attr]
        self.client.portal.call(self.app.state.dialects.close)  # type: ignore[union-attr]
        self.client.__exit__()

    @contextmanager
    def full(self) -> Iterator[None]:
        """Have the engine compute a request all the time; with limits for one it has room for no other."""
        entered, release = threading.Event(), threading.Event()

        def wait(batch: object) -> None:
            entered.set()
            release.wait(20)

        self.stage.before_step = wait
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(self.complete, max_tokens=1)
            try:
                assert entered.wait(20)
                yield
            finally:
                release.set()
            assert asking.result().status_code == 200

    def post(self, route: str = "/v1/chat/completions", headers: Mapping[str, str] | None = None, **body: Any) -> Any:
        """Send ``body`` as JSON, which may have lone surrogates, and check the shape of the answer."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        response = self.client.post(route, content=json.dumps(body), headers=sent)
        check_shape(route, response)
        return response

    def ask(self, content: Any = "hello", **fields: Any) -> Any:
        """Send a request to the chat route."""
        return self.post(model="toy", messages=[{"role": "user", "content": content}], **fields)

    def complete(self, prompt: Any = "hello", **fields: Any) -> Any:
        """Send a request to the completion route."""
        return self.post("/v1/completions", model="toy", prompt=prompt, **fields)


SHAPES: dict[str, tuple[type[ResponseModel], type[ResponseModel]]] = {
    "/v1/chat/completions": (ChatReply, ChatChunk),
    "/v1/completions": (CompletionReply, CompletionReply),
    "/v1/embeddings": (EmbeddingReply, EmbeddingReply),
    "/tokenize": (TokensReply, TokensReply),
    "/detokenize": (TextReply, TextReply),
    "/v1/stop_request": (StopReply, StopReply),
}
"""The models of each route's whole answers and stream chunks."""


def check_shape(route: str, response: Any) -> None:
    """Check that an answer conforms to the models of the API."""
    whole, chunk = SHAPES[route]
    if response.headers["content-type"].startswith("application/json"):
        msgspec.json.decode(response.content, type=whole if response.status_code == 200 else ErrorReply)
        return
    assert response.headers["content-type"].startswith("text/event-stream")
    for event in events(response):
        if event != "[DONE]":
            msgspec.convert(event, ErrorReply if "error" in event else chunk)


def events(response: Any) -> list[Any]:
    """Return the events of a stream."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def send_whole(response: Any) -> list[bytes]:
    """Return the body that a response sends, in pieces."""
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await response({"type": "http", "asgi": {}}, receive, send)
    return sent


def error_of(response: Any, status: int = 400) -> dict[str, Any]:
    """Return the error of a response, which must have ``status``."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error
