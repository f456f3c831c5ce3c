"""The kit for API dialects: how bodies are read, the roles of routes, and the form of errors."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from parallax_core.contracts.dialect import Dialect, DialectSpec
from parallax_core.contracts.engine import Delta, Finish
from parallax_core.contracts.surface import ROLE
from parallax_core.hookspecs import hookimpl
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.server.app import make_app
from parallax_core.server.body_messages import BodyRequest, BodyResult, RefusedBody
from parallax_core.server.body_reader import BodyReader, load_bodies
from parallax_core.server.drain import Drain
from parallax_core.server.error_body import TYPES
from parallax_core.server.options import ServerOptions
from parallax_core.server.served_models import ServedModels
from parallax_core.testing.asgi import make_scope, send_request
from parallax_core.testing.promise import broken

ALONE = "It is read in a process of its own, which imports nothing else of the dialect"
PATH = "The path of the route that it is sent to"
READ = "Gets a `BodyReader`, the valid body and the `BodyRequest`, and returns what the route needs"
REFUSES = "It raises `InvalidRequest` for what cannot be served"
ROLES = "whose routes state their roles by `needs_role`"
ERRORS = "Where errors have it, also below each path, and whoever refuses the request"
WRITES = "Returns the status and the body for a status, the error in OpenAI's form, and the id of the request"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MEASURES = "One that raises is logged, and not asked again"
RUNS = "It is cancelled, and its end awaited, before they are stopped"
PASSES = "It sees every request of the server, and may correct its path"
CLOSES = "Closes what it has opened; called once, when the models and the connections have ended"

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}>"
STATUSES = (400, 401, 403, 404, 408, 413, 429, 500, 503)
MODEL = "toy"
ENDS_S = 2.0


class DialectConformance:
    """Holds an API dialect to its contract.

    Subclass it in a test module under a name that begins with ``Test``, and give `spec` and `bodies`.
    """

    spec: DialectSpec
    bodies: Mapping[str, Mapping[str, Any]]
    """By kind: a body that a model with a chat template and embeddings can serve, without ``model``, and with more than
    one token."""

    def test_readers_import_no_routes(self) -> None:
        """A process that has imported the schema and the reader of each kind of body has imported no HTTP server."""
        modules = {
            ref.target.partition(":")[0] for body in self.spec.bodies.values() for ref in (body.schema, body.read)
        }
        code = f"import {', '.join(['sys', *sorted(modules)])}; print(*({{'fastapi', 'uvicorn'}} & sys.modules.keys()))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, broken(f"{sorted(modules)} cannot be imported: {done.stderr[-500:]}", ALONE)
        assert not done.stdout.strip(), broken(f"the readers import {done.stdout.strip()}", ALONE)

    def test_bodies_are_read(self, tmp_path: Path) -> None:
        """Each body is read; what comes of it goes to the server and back as it is."""
        for kind, result in self._read(tmp_path).items():
            content = result.content
            assert not isinstance(content, RefusedBody), broken(
                f"a body of the kind {kind!r} is refused: {content}", READ
            )
            decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=BodyResult)
            assert decoded == result, broken(f"what is read of {kind!r} changes on its way to the server", READ)

    def test_unknown_field_is_refused_by_name(self, tmp_path: Path) -> None:
        """A field that nothing reads is an error of the client's, which names it."""
        for kind, result in self._read(tmp_path, no_such_field=1).items():
            content = result.content
            is_named = isinstance(content, RefusedBody) and "no_such_field" in content.message
            assert is_named, broken(f"a body of the kind {kind!r} with an unknown field gives {content}", REFUSES)

    def test_model_that_is_not_served_is_refused(self, tmp_path: Path) -> None:
        """The field ``model`` is known to the schema, so a name that is not this model's is refused."""
        for kind, result in self._read(tmp_path, model="another").items():
            content = result.content
            is_unknown = isinstance(content, RefusedBody) and content.kind == "model"
            assert is_unknown, broken(f"a body of the kind {kind!r} for another model gives {content}", REFUSES)

    def test_bodies_have_their_routes(self) -> None:
        """At the path of each body is a route for POST."""
        routes = [route for router in self._open().routers for route in router.routes]
        posts = {route.path for route in routes if "POST" in route.methods}
        for kind, body in self.spec.bodies.items():
            assert body.path in posts, broken(f"no route takes a POST to {body.path}, for bodies of {kind!r}", PATH)

    def test_routes_state_their_roles(self) -> None:
        """Each route for more than reading says which keys it needs; one that does not is for administrators."""
        routes = [route for router in self._open().routers for route in router.routes]
        silent = [each.path for each in routes if each.methods - {"GET", "HEAD"} and not hasattr(each.endpoint, ROLE)]
        assert not silent, broken(f"these routes state no role: {silent}", ROLES)

    def test_errors_have_the_form_of_the_dialect(self) -> None:
        """Whatever is refused at its paths is JSON in its form, with a status of an error."""
        if (form := self._open().errors) is not None:
            for status in STATUSES:
                sent, written = form.write(status, {"message": "why", "type": "x", "param": None, "code": None}, "id")
                assert sent >= STATUSES[0], broken(f"an error with the status {status} is sent as {sent}", WRITES)
                assert "why" in json.dumps(written), broken(f"the body of a {status} does not say why", WRITES)
        for kind, body in self.spec.bodies.items():
            status, answer = asyncio.run(self._ask(body.path, {"model": MODEL, **self.bodies[kind]}))
            fault = f"without a model, {body.path} answers {status} {answer[:200]!r}"
            assert status >= STATUSES[0], broken(fault, ERRORS)
            assert isinstance(json.loads(answer or b"null"), dict), broken(fault, ERRORS)

    def test_meter_takes_what_a_server_tells_it(self) -> None:
        """It measures a request that ends, one that is abandoned, and errors of each type."""
        if (meter := self._open().meter) is None:
            return
        finish = Finish(reason="stop", prompt_tokens=1, output_tokens=1)
        try:
            ended, left = meter.begin(time.monotonic(), ""), meter.begin(time.monotonic() - 1, TRACE)
            for delta in (Delta(index=0, tokens=(1,)), Delta(index=0, tokens=(2, 3)), Delta(index=0, finish=finish)):
                ended.note(delta)
            left.abandon()
            for kind in TYPES:
                meter.count_error(kind)
        except Exception as error:
            raise AssertionError(broken(f"the meter raised {type(error).__name__}: {error}", MEASURES)) from error

    def test_dialect_closes(self) -> None:
        """It is opened and closed without a request."""

        async def run() -> None:
            if (close := self._open().close) is not None:
                async with asyncio.timeout(10):
                    await close()

        try:
            asyncio.run(run())
        except TimeoutError as error:
            raise AssertionError(broken("it did not close in ten seconds", CLOSES)) from error

    def test_dialect_runs_until_cancelled(self) -> None:
        """It runs beside models that never start, and ends within two seconds once it is cancelled."""

        async def run() -> None:
            if (work := self._open().run) is None:
                return
            task: asyncio.Task[None] = asyncio.create_task(work())
            await asyncio.wait([task], timeout=0.1)
            task.cancel()
            await asyncio.wait([task], timeout=ENDS_S)
            has_ended = task.done()
            task.cancel()
            assert has_ended, broken("it has not ended two seconds after it was cancelled", RUNS)
            fault = None if task.cancelled() else task.exception()
            assert fault is None, broken(f"it raised {fault!r}", RUNS)

        asyncio.run(run())

    def test_middleware_passes_on_what_is_right(self) -> None:
        """A request to a route reaches it as it was sent, and so does what is no request of HTTP."""
        opened, sent = self._open(), b'{"plain": "body"}'
        routes = SimpleNamespace(routes=[route for router in opened.routers for route in router.routes])
        for middleware in filter(None, (opened.path_middleware, opened.body_middleware)):
            for scope in ({"type": "lifespan"}, *(make_scope("POST", body.path) for body in self.spec.bodies.values())):
                got = asyncio.run(pass_through(middleware, {**scope, "app": routes}, sent))
                wanted = [(scope.get("path"), sent)]
                assert got == wanted, broken(f"{wanted} to {scope['type']} comes through as {got}", PASSES)

    def _open(self) -> Dialect:
        return self.spec.open.load()(ServedModels(), ServerOptions())

    async def _ask(self, path: str, body: Mapping[str, object]) -> tuple[int, bytes]:
        """Return the status and the body of the answer of a server without a model."""
        offer = hookimpl(specname="parallax_register_dialects")(lambda: [self.spec])
        record = PluginRecord(name="tested", distribution="tested", version="1", module="tested", state="loaded")
        plugins = PluginHost([(record, SimpleNamespace(parallax_register_dialects=offer))])
        models = ServedModels()
        app = make_app(models, ServerOptions(), Drain(), plugins)
        assert not plugins.records[0].reason, f"it cannot be served: {plugins.records[0].reason}"
        answer = await send_request(app, "POST", path, json.dumps(body).encode())
        await app.state.dialects.close()
        return answer.status, answer.body

    def _read(self, folder: Path, **more: object) -> dict[str, BodyResult]:
        """Return what each body is read as, with ``more`` fields."""
        targets = {kind: (body.schema.target, body.read.target) for kind, body in self.spec.bodies.items()}
        reader = BodyReader(write_tokenizer(folder), MODEL, load_bodies(targets))
        found = {}
        for kind, body in self.bodies.items():
            ask = BodyRequest(kind=kind, body=json.dumps({**body, **more}).encode())
            try:
                found[kind] = reader.answer(ask)
            except Exception as error:
                fault = f"reading a body of the kind {kind!r} raised {type(error).__name__}: {error}"
                raise AssertionError(broken(fault, REFUSES)) from error
        return found


async def pass_through(middleware: Any, scope: dict[str, Any], body: bytes) -> list[tuple[str | None, bytes]]:  # noqa: ANN401
    """Return the path and the body of each call of what middleware wraps, for one call of it with a body."""
    got: list[tuple[str | None, bytes]] = []

    async def inner(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401 -- as ASGI has it
        del send
        got.append((scope.get("path"), (await receive())["body"]))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    await middleware(inner)(scope, receive, None)
    return got


def write_tokenizer(folder: Path) -> ModelTokenizer:
    """Write a model's folder in which every byte is a token, and return its tokenizer."""
    vocab = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    return ModelTokenizer(folder)
