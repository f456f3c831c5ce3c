"""A node in a process of its own that runs a toy: ``python -m parallax_core.testing.node PLAN``.

For tests of pipelines whose processes are killed: they start quickly, and what they must
draw is known. PLAN is a `NodePlan` as JSON. The process ends when its standard input does, or when its head is gone.
SIGTERM has it leave, as a worker does. SIGUSR1 blocks its event loop for `NodePlan.block_s` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

import msgspec

from parallax_core.base import log
from parallax_core.base.errors import PeerLost, StageLost
from parallax_core.base.processes import end_with_parent
from parallax_core.base.refs import Ref
from parallax_core.contracts.node_service import NodeService
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.stage import LayerRange, PoolKind, Stage, StageBatch
from parallax_core.contracts.token_engine import EnginePlan, TokenEngine
from parallax_core.contracts.transport import Transport, TransportPlan
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.session import WorkerSession
from parallax_core.node.worker.stop import serve_until_signal
from parallax_core.testing.liar import LiarTransport, Lie, LiePlan
from parallax_core.testing.replica_kind import ToyModels
from parallax_core.testing.stage_engine import make_toy_engine
from parallax_core.testing.toy import SizeOptions, Toy, ToyStage
from parallax_core.wire.membership import Assign, Join

logger = logging.getLogger(__name__)

BACKEND = "toy"


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of the process, from its command line."""

    node: str
    transport: str
    """The factory of the transport, as ``module:name``."""
    connect: str
    listen: str
    timeout_s: float = 2.5
    lie: Lie | None = None
    """The invalid message it sends; see `LiePlan`."""
    after: int = 0
    block_s: float = 5.0
    drain_s: float = 30.0
    """Seconds that it stays after SIGTERM if a pipeline uses its stage."""
    service: str = ""
    """The factory of a service that opens engines of a toy, as ``module:name``; empty: no service."""


def name_toy(toy: Toy) -> str:
    """Return the model name that stands for a toy."""
    return ",".join(toy.layers)


SIZES = SizeOptions(num_pages=200, max_batch_tokens=32, context=256)
"""Of the stages of nodes."""


def read_toy(model: str) -> Toy:
    """Return the toy that a model name of `name_toy` stands for."""
    return Toy(msgspec.convert(tuple(model.split(",")), tuple[PoolKind, ...]))


def open_toy_layers(assign: Assign, progress: Progress) -> Stage:
    """Return the layers of a toy that a node is to have; for a lease, those that it holds."""
    if not assign.memory_share:
        return open_toy(assign, progress)
    progress("loading layers", 1, 1, "bytes")
    return read_toy(assign.model).open_leased(LayerRange(assign.holds_start, assign.holds_stop), **SIZES)


def open_toy(assign: Assign, progress: Progress) -> ToyStage:
    """Return the layers of a toy that a node is to have for itself."""
    progress("loading layers", 1, 1, "bytes")
    layers = LayerRange(assign.start, assign.stop) if assign.stop else None
    stage = read_toy(assign.model).open(layers, **SIZES)

    def forget(batch: StageBatch) -> None:
        """Clear the log of the toy, which would otherwise grow without bound."""
        del batch
        stage.batches.clear()
        stage.forks.clear()

    stage.before_step = forget
    return stage


def open_toy_engine(plan: EnginePlan) -> TokenEngine:
    """Return an engine for a toy, not started."""
    return make_toy_engine(read_toy(plan.model.name), num_pages=200, max_batch_tokens=32, context=256)


def make_transport(plan: NodePlan) -> Transport:
    """Return the transport of a node, not started."""
    factory: Callable[[TransportPlan], Transport] = Ref[Callable[[TransportPlan], Transport]](plan.transport).load()
    transport = factory(TransportPlan(node=plan.node, listen=plan.listen, timeout_s=plan.timeout_s))
    return LiarTransport(transport, LiePlan(plan.lie, plan.after)) if plan.lie else transport


async def serve_head(plan: NodePlan, open_stage: Callable[[Assign, Progress], Stage] = open_toy) -> None:
    """Serve a head until it is gone, with stages that ``open_stage`` opens."""
    transport = make_transport(plan)
    await transport.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, time.sleep, plan.block_s)
    services = NodeServices(transport)
    if plan.service:
        context = ToyModels(node=plan.node, transport=transport, make=open_toy_engine)
        services.add(Ref[Callable[[ToyModels], NodeService]](plan.service).load()(context))
    member = WorkerSession(services, plan.node, open_stage)
    join = Join(transport.address, (BACKEND,), socket.gethostname()[:256], os.getpid())
    serving = member.serve(plan.connect, "head", join)
    try:
        await serve_until_signal(member, services.run_beside(serving), plan.drain_s)
    except (PeerLost, StageLost) as error:
        logger.warning("node ends: %s", error.message)
    finally:
        await member.close()
        await transport.stop()


def main() -> None:
    """Run the process."""
    end_with_parent()
    plan = msgspec.json.decode(sys.argv[1].encode(), type=NodePlan)
    log.configure(verbose=False, node=plan.node)
    asyncio.run(serve_head(plan))


if __name__ == "__main__":
    main()
