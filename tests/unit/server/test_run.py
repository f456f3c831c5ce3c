"""A server from its start to its end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from dataclasses import replace

import pytest

from parallax_core.base.errors import EngineFailed, ParallaxError
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.dialect import Dialect
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from parallax_core.server import run
from parallax_core.server.app import make_app
from parallax_core.server.bind import bind_socket
from parallax_core.server.body_reader import BodyReader
from parallax_core.server.drain import Drain
from parallax_core.server.hosting import FixedModel
from parallax_core.server.meters import Meters
from parallax_core.server.options import ServerOptions
from parallax_core.server.served_models import ServedModels
from parallax_core.server.service import Service
from parallax_core.testing.fault import Fault, FaultStage
from tests.support.local_reader import LocalReader
from tests.unit.server.dialects import BODIES, make_plugins
from tests.unit.server.letters import TOY, Letters
from tests.unit.server.listening import request


def make_site(engine: PipelineEngine) -> run.ServerSite:
    router, options, drain = Router([engine], LeastPendingTokens(), lambda: 400), ServerOptions(), Drain()
    reader = LocalReader(BodyReader(Letters(), "toy", BODIES))  # type: ignore[arg-type]
    service = Service("toy", router, Letters(), reader, Meters())  # type: ignore[arg-type]
    models = ServedModels.only(service)
    return run.ServerSite(make_app(models, options, drain, make_plugins()), models, options, drain)


async def test_server_that_has_to_give_way_ends_with_the_reason_also_before_it_is_ready() -> None:
    over = asyncio.Event()

    async def await_end() -> None:
        await over.wait()
        raise ParallaxError("another coordinator has taken over", "follow it")

    class Slow(LocalExecutor):
        """Stages that are never assembled."""

        async def assemble(self, *_: object) -> None:
            await asyncio.Event().wait()

    engine = PipelineEngine(Slow([TOY.open]), Letters().decode)
    site = replace(make_site(engine), await_end=await_end)
    serving = asyncio.create_task(run.run_server(site, bind_socket("127.0.0.1", 0), lambda: None))
    async with asyncio.timeout(30):
        await asyncio.sleep(0.1)
        assert not serving.done()
        over.set()
        with pytest.raises(ParallaxError, match="another coordinator has taken over") as caught:
            await serving
    assert caught.value.hint == "follow it"


def make_engine() -> PipelineEngine:
    return PipelineEngine(LocalExecutor([TOY.open]), Letters().decode)


async def test_server_whose_stage_hangs_tells_its_clients_and_ends_with_an_error() -> None:
    plan = PipelineOptions(heartbeat_s=0.05, step_timeout_s=0.2)
    hanging = FaultStage(TOY.open(num_pages=200, context=400), Fault("hang", at=2))
    engine = PipelineEngine(LocalExecutor([lambda: hanging], plan), Letters().decode, plan)
    sock, ready = bind_socket("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(run.run_server(make_site(engine), sock, ready.set))
    async with asyncio.timeout(30):
        await ready.wait()
        incoming, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(request(max_tokens=50, stream=True))
        answer = (await incoming.read()).decode()  # until the server ends the connection
        writer.close()
        with pytest.raises(EngineFailed, match="the engine failed: the thread of stage 0 hangs") as caught:
            await serving
    hanging.release()
    assert '"content":' in answer
    assert "the thread of stage 0 hangs, and only a new process can end that" in answer
    assert caught.value.hint


async def start_and_end(site: run.ServerSite) -> None:
    """Have a server become ready, and end."""
    ready = asyncio.Event()
    serving = asyncio.create_task(run.run_server(site, bind_socket("127.0.0.1", 0), ready.set))
    async with asyncio.timeout(30):
        await ready.wait()
        serving.cancel()
        await asyncio.wait([serving])


async def test_server_that_ends_closes_its_dialects() -> None:
    ends: list[str] = []

    async def close() -> None:
        ends.append("closed")

    site = make_site(make_engine())
    site.app.state.dialects.opened.append(Dialect(routers=(), close=close))
    await start_and_end(site)
    assert ends == ["closed"]


async def test_dialects_run_until_their_end_before_the_models_stop(caplog: pytest.LogCaptureFixture) -> None:
    ends, site = list[str](), make_site(make_engine())

    async def run_beside() -> None:
        assert not site.models.started.is_set()
        try:
            await site.models.started.wait()
            await asyncio.Event().wait()
        finally:
            ends.append(site.models.main.engine.health().state)

    async def fail() -> None:
        raise ZeroDivisionError

    for work in (run_beside, fail):
        site.app.state.dialects.opened.append(Dialect(routers=(), run=work))
    await start_and_end(site)
    assert ends == ["ready"]
    assert "what a dialect does beside the models has failed" in caplog.text


def test_nothing_is_imported_for_the_first_stream() -> None:
    code = """
import asyncio, sys
from tests.unit.server.dialects import BODIES, make_plugins
from tests.unit.server.dialects import BODIES, make_plugins
from tests.unit.server.dialects import BODIES, make_plugins
from tests.unit.server.test_run import make_engine, make_site, start_and_end
asyncio.run(start_and_end(make_site(make_engine())))
sys.exit("anyio._backends._asyncio" not in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_garbage_is_collected_before_what_is_left_is_frozen() -> None:
    class Part:
        """Refers to itself."""

    part = Part()
    part.own = part  # type: ignore[attr-defined]
    kept = weakref.ref(part)
    gc.disable()
    try:
        del part
        assert kept() is not None
        run.settle_memory()
        assert kept() is None
    finally:
        gc.enable()


async def test_model_of_a_server_of_one_starts_all_readers_of_bodies() -> None:
    started: list[str] = []

    class Reader(LocalReader):
        async def start(self) -> None:
            started.append("first")

        def start_others(self) -> None:
            started.append("others")

    engine = make_engine()
    reader = Reader(BodyReader(Letters(), "toy", BODIES))  # type: ignore[arg-type]
    router = Router([engine], LeastPendingTokens(), lambda: 400)
    model = FixedModel(Service("toy", router, Letters(), reader, Meters()))  # type: ignore[arg-type]
    await model.start()
    assert started == ["first", "others"]
    await model.stop()
    assert engine.health().state == "draining"
