"""A server from its start to its end."""

from __future__ import annotations

import asyncio

import pytest

from parallax_core.base.errors import EngineFailed
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.crew import Crew
from parallax_core.node.pipeline import PipelineEngine
from parallax_core.node.plan import PipelinePlan
from parallax_core.node.router import Router
from parallax_core.server import run
from parallax_core.server.app import make_app
from parallax_core.server.edge import Edge
from parallax_core.server.gate import Gate
from parallax_core.server.metrics import Meter
from parallax_core.server.reader import BodyReader, LocalReader
from parallax_core.server.served import Served
from parallax_core.testing.fault import Fault, FaultStage
from tests.unit.server.letters import TOY, Letters
from tests.unit.server.listening import request


async def test_server_whose_stage_hangs_tells_its_clients_and_ends_with_an_error() -> None:
    plan = PipelinePlan(heartbeat_s=0.05, step_timeout_s=0.2)
    hanging = FaultStage(TOY.open(num_pages=200, context=400), Fault("hang", at=2))
    engine = PipelineEngine(Crew([lambda: hanging], plan), Letters().decode, plan)
    router, edge, gate = Router([engine], LeastPendingTokens(), lambda: 400), Edge(), Gate()
    reader = LocalReader(BodyReader(Letters(), "toy"))  # type: ignore[arg-type]
    served = Served("toy", router, Letters(), reader, Meter())  # type: ignore[arg-type]
    sock, ready = run.bind_socket("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(
        run.run_server(run.Site(make_app(served, edge, gate), served, edge, gate), sock, ready.set)
    )
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
    assert "stage 0 of 1 is lost: it has computed step 3" in answer
    assert caught.value.hint
