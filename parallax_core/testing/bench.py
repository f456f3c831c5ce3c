"""Plays the peers of a running stage in tests: its head and its neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from parallax_core.base.ids import Epoch, SeqId
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.stage import Draw, Drop, Edit, LayerRange, Open, Row, SequenceSpec, Stage
from parallax_core.contracts.tensor import Tensor
from parallax_core.contracts.transport import Link, TransportPlan
from parallax_core.testing.promise import broken
from parallax_core.testing.runner import beside, within
from parallax_core.testing.toy import GREEDY, Toy
from parallax_core.wire.codec import decode, encode
from parallax_core.wire.messages import Failure, Message, Result, Step

TOY = Toy(("full", "window", "full"))
WHOLE, MIDDLE, LAST = LayerRange(0, 3), LayerRange(1, 2), LayerRange(2, 3)
QUIET_S = 0.2
HEARD = "Reports a finished step, directly to the head: any stage with its free pages, the last also with the answers"


@dataclass(frozen=True, slots=True)
class WorkerLinks:
    """The ends of links that belong to the worker."""

    head: Link
    before: Link | None
    """To the stage before; None: the head gives the steps."""
    after: Link | None
    """To the next stage; None: this is the last."""


Work = Callable[[Callable[[], Stage], int, WorkerLinks], Awaitable[None]]
"""Opens a stage and runs it as the stage of this number until its head or a neighbour is lost."""


@dataclass(frozen=True, slots=True)
class PeerEnd:
    """The other end of a link of the worker."""

    link: Link
    patience_s: float

    async def send(self, *messages: Message) -> None:
        """Send messages in their order."""
        for message in messages:
            await self.link.send(encode(message))

    async def hear(self) -> Message:
        """Return the next message."""
        return decode(await within(self.patience_s, self.link.receive(), "the worker sent no message", HEARD))

    async def hear_result(self) -> Result:
        """Return the next message, which has to be a result."""
        message = await self.hear()
        assert isinstance(message, Result), broken(f"the worker sent {message} instead of a result", HEARD)
        return message

    async def hear_failure(self) -> Failure:
        """Return the next message, which has to be a failure."""
        message = await self.hear()
        fault = f"the worker sent {message} instead of a failure"
        assert isinstance(message, Failure), broken(
            fault, "Reports that a step failed on a stage, directly to the head"
        )
        return message

    async def hear_rest(self) -> list[Message]:
        """Return all further messages until none follows."""
        heard: list[Message] = []
        try:
            while True:
                async with asyncio.timeout(QUIET_S):
                    heard.append(decode(await self.link.receive()))
        except TimeoutError:
            return heard


@dataclass(frozen=True, slots=True)
class Bench:
    """A running worker and the other ends of its links; a missing neighbour is the head."""

    head: PeerEnd
    before: PeerEnd
    after: PeerEnd
    working: asyncio.Task[None]


@asynccontextmanager
async def set_up(work: Work, stage: Stage, layers: LayerRange, patience_s: float) -> AsyncIterator[Bench]:
    """Run a stage of the toy with the neighbours that its layers need."""
    number = layers.start
    names = ["head", *(["before"] if layers.start else []), *(["after"] if layers.stop < len(TOY.layers) else [])]
    async with AsyncExitStack() as stack:
        node = InProcessTransport(TransportPlan(node=f"stage-{number}", listen="inprocess://", credit=64))
        await node.start()
        stack.push_async_callback(node.stop)
        locations: dict[str, PeerEnd] = {}
        ends: dict[str, Link] = {}
        for name in names:
            other = InProcessTransport(TransportPlan(node=name, credit=64))
            locations[name] = PeerEnd(await other.connect(node.address, f"stage-{number}"), patience_s)
            ends[name] = await node.accept()
        links = WorkerLinks(ends["head"], ends.get("before"), ends.get("after"))
        working = await stack.enter_async_context(beside(_work(work, stage, number, links)))
        head = locations["head"]
        yield Bench(head, locations.get("before", head), locations.get("after", head), working)


async def _work(work: Work, stage: Stage, number: int, links: WorkerLinks) -> None:
    await work(lambda: stage, number, links)


def open_sequence(seq: int, num_prompt: int = 1) -> Open:
    """Return the edit that opens a sequence for greedy draws."""
    return Open(SeqId(seq), SequenceSpec(prompt_length=num_prompt, sampling=GREEDY))


def make_step(
    number: int,
    edits: Sequence[Edit] = (),
    rows: Sequence[tuple[int, int, Sequence[int]]] = (),
    epoch: int = 0,
) -> Step:
    """Return a step; a row is (sequence, start, tokens), and draws the token after its last."""
    made = tuple(Row(SeqId(seq), start, tuple(tokens), (Draw(len(tokens) - 1),)) for seq, start, tokens in rows)
    return Step(Epoch(epoch), number, tuple(edits), made)


def give_hidden(step: Step) -> Step:
    """Return a step as it comes from a stage before: with a hidden state for each token."""
    num_tokens = sum(len(row.tokens) for row in step.rows)
    values = b"".join((1000 + index).to_bytes(8, "little") for index in range(num_tokens))
    hidden = (Tensor("int64", (num_tokens, 1), values),) if num_tokens else ()
    return Step(step.epoch, step.step, step.edits, step.rows, hidden)


def drop_sequence(seq: int) -> Drop:
    """Return the edit that drops a sequence."""
    return Drop(SeqId(seq))
