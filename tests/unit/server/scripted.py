"""A server whose engine answers from a script, with a real tokenizer, chat template and parser.

The script stands for a model that calls tools, which no model small enough for a test does reliably.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

import msgspec
import openai
from starlette.testclient import TestClient
from tokenizers import AddedToken, Tokenizer

from parallax_core.api import Ref
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.engine import Delta, EngineStats, Finish, Health, Request, Stream
from parallax_core.contracts.engine_spec import RequestField
from parallax_core.contracts.parser import ParserSpec
from parallax_core.contracts.token_engine import EngineInfo
from parallax_core.models.output_parser import OutputParser
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.routing.router import Router
from parallax_core.node.text_engine import TextEngine
from parallax_core.server.app import make_app
from parallax_core.server.body_messages import ParserTraits
from parallax_core.server.body_reader import BodyReader
from parallax_core.server.drain import Drain
from parallax_core.server.options import ServerOptions
from parallax_core.server.quota import Quota
from parallax_core.server.served_models import ServedModels
from parallax_core.server.service import Service
from tests.support.local_reader import LocalReader
from tests.unit.server.dialects import BODIES, make_plugins
from tests.unit.tinymodel import write_model

SPECIAL = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|hidden|>")
"""Special tokens, which give no text unless the parser asks for it."""
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% for call in m.tool_calls or [] %}[{{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}"
    "]{% endfor %}{% if m.tool_call_id %}#{{ m.tool_call_id }}{% endif %}{{ eos_token }}{% endfor %}"
    "{% if enable_thinking %}<think>\n{% endif %}"
)
HERMES = ParserSpec(
    name="hermes",
    summary="",
    factory=Ref("parallax_models.parsers.json_calls:HermesParser"),
    special_tokens=SPECIAL[:4],
    reasoning_end="</think>\n\n",
    reasoning_marks=("<think>", "</think>"),
)
LENGTH = 4000
CACHED = 32 + 3
"""The tokens of every prompt that were cached."""


class ScriptedStream:
    """The tokens of a script, one at a time."""

    def __init__(self, request: Request, tokens: list[int], gate: asyncio.Event | None) -> None:
        self._request, self._tokens, self._gate = request, tokens, gate
        self._closed = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        request = self._request
        if self._gate is not None:
            waiting = [asyncio.ensure_future(event.wait()) for event in (self._gate, self._closed)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in waiting:
                each.cancel()
        most = min(len(self._tokens), request.max_tokens or len(self._tokens))
        for index in range(request.n):
            for number, token in enumerate(self._tokens[:most], 1):
                await asyncio.sleep(0)
                if self._closed.is_set():
                    return
                ended = None if number < most else "stop" if most == len(self._tokens) else "length"
                finish = None
                if ended and index == request.n - 1:
                    num_prompt = len(request.prompt)
                    finish = Finish(reason="stop", prompt_tokens=num_prompt, output_tokens=0, cached_tokens=CACHED)
                yield Delta(tokens=(token,), index=index, ended=ended, finish=finish)  # type: ignore[arg-type]

    def close(self) -> None:
        self._closed.set()


class ScriptedEngine:
    """A `TokenEngine` that gives each request the tokens of the next script."""

    def __init__(self, encode: Callable[[str], list[int]], length: int) -> None:
        self._encode = encode
        self.info = EngineInfo(
            num_layers=1,
            vocab_size=1000,
            context_length=length,
            max_running=8,
            max_batch_tokens=64,
            seed="exact",
            honours=frozenset(get_args(RequestField)),
            max_answers=8,
            max_logprobs=20,
            device="none",
            dtype="float32",
            weight_bytes=1,
        )
        self.scripts: list[str] = []
        self.requests: list[Request] = []
        self.gate: asyncio.Event | None = None
        """Answers begin once it is set; None: at once."""

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    def submit(self, request: Request) -> Stream:
        self.requests.append(request)
        return ScriptedStream(request, self._encode(self.choose(request)), self.gate)

    def choose(self, request: Request) -> str:
        """Return the script of the request, which is the last one of ``requests``."""
        del request
        return self.scripts[len(self.requests) - 1]

    def health(self) -> Health:
        return Health(state="ready")

    def stats(self) -> tuple[EngineStats, ...]:
        return ()


class ScriptedSite:
    """The server, and the official client of OpenAI's API."""

    def __init__(
        self,
        folder: Path,
        spec: ParserSpec | None = HERMES,
        options: ServerOptions | None = None,
        *,
        length: int = LENGTH,
        template: str = TEMPLATE,
    ) -> None:
        self.folder = folder
        write_model(folder, template)
        path = folder / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        marks = dict.fromkeys((*SPECIAL, *(spec.special_tokens if spec else ())))
        tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
        tokenizer.save(str(path))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": length}))
        self.text = ModelTokenizer(folder)
        self.engine = self.make_script(lambda script: list(self.text.encode(script)), length)
        self.router = Router([self.make_engine()], LeastPendingTokens(), lambda: length)
        parser = OutputParser(spec, spec.factory.load()) if spec else None
        options = options or ServerOptions()
        traits = ParserTraits.of(spec) if spec else ParserTraits()
        traits = msgspec.structs.replace(traits, may_list_calls=options.lists_calls)
        reader = LocalReader(BodyReader(self.text, "toy", BODIES, traits))
        find_length, quota = (lambda: length), Quota(options)
        self.service = Service(
            "toy",
            self.router,
            self.text,
            reader,
            find_max_length=find_length,
            quota=quota,
            parser=parser,
            options=options,
        )
        self.models = ServedModels.only(self.service)
        self.app = make_app(self.models, options, Drain(), make_plugins())
        self.http = TestClient(self.app, raise_server_exceptions=False)
        self.openai = openai.OpenAI(
            base_url="http://testserver/v1",
            api_key="x",
            max_retries=0,
            http_client=self.http,
            _strict_response_validation=True,
        )

    def __enter__(self) -> Self:
        self.http.__enter__()
        self.http.portal.call(self.router.start)  # type: ignore[union-attr]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.http.portal.call(self.router.stop)  # type: ignore[union-attr]
        self.http.portal.call(self.app.state.dialects.close)  # type: ignore[union-attr]
        self.http.__exit__()

    def make_script(self, encode: Callable[[str], list[int]], length: int) -> ScriptedEngine:
        """Return the engine that answers."""
        return ScriptedEngine(encode, length)

    def make_engine(self) -> Any:
        """Return the replica."""
        return TextEngine(self.engine, self.text.decode)

    @property
    def prompt(self) -> str:
        """The text of the last prompt."""
        return self.text.show(self.engine.requests[-1].prompt)

    def ask(self, script: str, **fields: Any) -> Any:
        """Return the client's answer, if the engine writes ``script``."""
        self.engine.scripts.append(script)
        given = {"messages": [{"role": "user", "content": "hi"}], **fields}
        return self.openai.chat.completions.create(model="toy", **given)


def only_reasoning(spec: ParserSpec = HERMES) -> ParserSpec:
    """Return the spec of a parser that finds no calls."""
    return replace(spec, finds_calls=False)


def write_call(name: str, arguments: dict[str, Any]) -> str:
    """Return a tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
