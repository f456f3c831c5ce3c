"""Links over which a node sends one invalid message, to test its peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from math import nan
from typing import Literal

from msgspec.structs import replace

from parallax_core.contracts.stage import Answer, Drawn
from parallax_core.contracts.tensor import Tensor
from parallax_core.contracts.transport import Frame, Link, Transport
from parallax_core.wire.codec import VERSION_BYTE, decode, encode
from parallax_core.wire.errors import UnknownMessage
from parallax_core.wire.messages import Failure, Heartbeat, Message, Result, Step

Lie = Literal[
    "garbage",
    "version",
    "number",
    "stage",
    "epoch",
    "free",
    "token",
    "answers",
    "logprob",
    "top",
    "words",
    "kind",
    "shape",
    "flood",
]

FLOOD = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class LiePlan:
    """The invalid message of a node, and its time.

    =========== ================================================================
    ``garbage`` a frame that cannot be read
    ``version`` a frame of another version of the format
    ``number``  a result of another step
    ``stage``   a result of another stage
    ``epoch``   a result of an epoch that has not begun
    ``free``    free pages that the stage cannot have
    ``token``   tokens that are not in the vocabulary
    ``answers`` one answer too few
    ``logprob`` log-probabilities that are not numbers
    ``top``     best tokens that are not in the vocabulary
    ``words``   a failure told at greater length than there is
    ``kind``    something that only heads say
    ``shape``   hidden states of one token too few
    ``flood``   a great many heartbeats
    =========== ================================================================
    """

    lie: Lie
    after: int = 0
    """The number of suitable messages sent unchanged before the invalid one."""


def tell(lie: Lie, message: Step | Result) -> Sequence[Frame]:
    """Return what is said in place of ``message``; nothing, where the lie is not about such messages."""
    frame = encode(message)
    told: Sequence[Frame] = ()
    match lie, message:
        case "garbage", _:
            told = (Frame(VERSION_BYTE + b"\xc1garbage"),)
        case "version", _:
            told = (Frame(b"\x63" + frame.header[1:], frame.buffers),)
        case "flood", Result(epoch, step, stage):
            told = (*[encode(Heartbeat(epoch, step, stage))] * FLOOD, frame)
        case "shape", Step(hidden=[_, *_]):
            told = (encode(replace(message, hidden=tuple(map(_shorten, message.hidden)))),)
        case _, Result() if lie in TWISTS and (message.answers or lie not in OF_ANSWERS):
            told = (encode(TWISTS[lie](message)),)
    return told


OF_ANSWERS = ("token", "answers", "logprob", "top")
TWISTS: dict[Lie, Callable[[Result], Message]] = {
    "number": lambda result: replace(result, step=result.step + 1),
    "stage": lambda result: replace(result, stage=result.stage + 1),
    "epoch": lambda result: replace(result, epoch=result.epoch + 1),
    "free": lambda result: replace(result, free=tuple(free + 1 for free in result.free)),
    "token": lambda result: replace(result, answers=(Drawn((2**40,)), *result.answers[1:])),
    "answers": lambda result: replace(result, answers=result.answers[1:]),
    "logprob": lambda result: replace(result, answers=_twist(result, nan, 0)),
    "top": lambda result: replace(result, answers=_twist(result, -0.5, 2**40)),
    "words": lambda result: Failure(result.epoch, result.step, result.stage, "\x1b[2J" * 10_000),
    "kind": lambda result: Step(result.epoch, result.step),
}
"""Well-formed messages that are not true."""


def _twist(result: Result, logprob: float, token: int) -> tuple[Answer, ...]:
    """Return the answers, the first with such a log-probability of each token, and such a best token."""
    first, *rest = result.answers
    drawn = first if isinstance(first, Drawn) else Drawn((0,))
    best = ((token, logprob),) * max(1, len(drawn.top))
    return Drawn(drawn.tokens, (logprob,) * len(drawn.tokens), best), *rest


class LiarLink:
    """A link that lies once; see `parallax_core.api.Link`."""

    def __init__(self, link: Link, plan: LiePlan) -> None:
        self._link = link
        self._plan = plan
        self._num_sent = 0

    @property
    def peer(self) -> str:
        """The name of the node at the other end."""
        return self._link.peer

    async def send(self, frame: Frame) -> None:
        """Send a frame, or something else in its place."""
        try:
            message: Message | None = decode(frame)
        except UnknownMessage:  # of a node service
            message = None
        if isinstance(message, Step | Result) and (told := tell(self._plan.lie, message)):
            self._num_sent += 1
            if self._num_sent == self._plan.after + 1:
                for each in told:
                    await self._link.send(each)
                return
        await self._link.send(frame)

    async def receive(self) -> Frame:
        """Return the next frame."""
        return await self._link.receive()

    async def close(self) -> None:
        """End the link."""
        await self._link.close()


class LiarTransport:
    """A transport whose links lie; see `parallax_core.api.Transport`."""

    def __init__(self, transport: Transport, plan: LiePlan | None) -> None:
        self._transport = transport
        self.plan = plan
        """None: links that are made from now on do not lie."""

    @property
    def address(self) -> str:
        """Where others reach this node."""
        return self._transport.address

    async def start(self) -> None:
        """Begin to listen."""
        await self._transport.start()

    async def connect(self, address: str, node: str) -> Link:
        """Make a link."""
        return self._wrap(await self._transport.connect(address, node))

    async def accept(self) -> Link:
        """Wait for a link."""
        return self._wrap(await self._transport.accept())

    async def stop(self) -> None:
        """Close every link."""
        await self._transport.stop()

    def _wrap(self, link: Link) -> Link:
        return LiarLink(link, self.plan) if self.plan else link


def _shorten(tensor: Tensor) -> Tensor:
    rows, width = tensor.shape
    size = len(memoryview(tensor.data).cast("B")) // rows
    return Tensor(tensor.dtype, (rows - 1, width), memoryview(tensor.data).cast("B")[: size * (rows - 1)])
