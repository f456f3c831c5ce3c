"""Two nodes and a link between them, over the transport under test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from parallax_core.base.errors import PeerLost
from parallax_core.contracts.transport import Frame, FrameLimits, Link, Transport, TransportPlan
from parallax_core.testing.promise import broken
from parallax_core.testing.runner import beside, within

NUMBER_BYTES = 8
NO_LINK = "no link was made"
CONNECT = "Connect to the node called"
QUIET_S = 0.2
"""Seconds without a frame after which a kit concludes that no further one follows."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two started transports and the two ends of the link that ``alpha`` made to ``beta``."""

    alpha: Transport
    beta: Transport
    near: Link
    """The end of ``alpha``."""
    far: Link
    """The end of ``beta``."""


class Nodes:
    """The base of the transport kits: the author's transport, and nodes that use it.

    Subclasses give `make_transport` and `make_address`; the attributes have defaults that suit most.
    """

    timeout_s: float = 1.0
    """`TransportPlan.timeout_s` in the tests of peers that are lost; others leave more time, for busy machines."""
    grace_s: float = 5.0
    """Seconds of tolerance for late events, since test machines are busy."""
    credit: int = 4
    """`TransportPlan.credit` in every test."""
    slack: int = 0
    """The number of frames beyond ``credit`` that the link may carry; document it if it is not 0."""
    large_bytes: int = 64 * 2**20
    """The size of the largest buffer that is sent."""
    foreign_address: str = "nowhere"
    """An invalid address for this transport."""

    def make_transport(self, plan: TransportPlan) -> Transport:
        """Return the transport under test, not started."""
        raise NotImplementedError

    def make_address(self, node: str) -> str:
        """Return an unused address at which ``node`` may listen, such as ``tcp://127.0.0.1:0``."""
        raise NotImplementedError

    @property
    def patience_s(self) -> float:
        """How long what must happen within ``timeout_s`` is waited for."""
        return self.timeout_s + self.grace_s

    def make_plan(self, node: str, listen: str = "") -> TransportPlan:
        """Return a plan with the settings of this class, and a timeout that is not met by chance."""
        return TransportPlan(node=node, listen=listen, credit=self.credit, timeout_s=self.patience_s)

    @asynccontextmanager
    async def started(
        self, node: str, *, listen: bool = False, limits: FrameLimits | None = None, timeout_s: float = 0.0
    ) -> AsyncIterator[Transport]:
        """Start a transport with some changes to its plan, and stop it in the end."""
        plan = self.make_plan(node, self.make_address(node) if listen else "")
        changed = replace(plan, limits=limits or plan.limits, timeout_s=timeout_s or plan.timeout_s)
        transport = self.make_transport(changed)
        await transport.start()
        try:
            yield transport
        finally:
            await transport.stop()

    @asynccontextmanager
    async def paired(self, *, limits: FrameLimits | None = None, timeout_s: float = 0.0) -> AsyncIterator[Pair]:
        """Start a listening ``beta`` and an ``alpha`` with frame ``limits``, and link them."""
        async with (
            self.started("beta", listen=True, timeout_s=timeout_s) as beta,
            self.started("alpha", limits=limits, timeout_s=timeout_s) as alpha,
        ):
            near, far = await self.join(alpha, beta, "beta")
            yield Pair(alpha, beta, near, far)

    async def join(self, alpha: Transport, beta: Transport, node: str) -> tuple[Link, Link]:
        """Link ``alpha`` to ``beta``, whose name is ``node``; return both ends."""
        async with beside(beta.accept()) as accepting:
            near = await self.reach(alpha, beta.address, node)
            far = await within(
                self.patience_s, accepting, "a link was made and not accepted", "Wait for the next incoming link"
            )
            return near, far

    async def reach(self, transport: Transport, address: str, node: str) -> Link:
        """Make a link to a node that is there."""
        connecting = transport.connect(address, node)
        try:
            return await within(2 * self.patience_s, connecting, NO_LINK, CONNECT)
        except PeerLost as error:
            raise AssertionError(broken(f"{NO_LINK} to a node that is there: {error.message}", CONNECT)) from error

    async def send(self, link: Link, frame: Frame) -> None:
        """Send a frame which there is room for."""
        promise = "waiting while the receiver has too many that it has not taken"
        await within(self.patience_s, link.send(frame), "sending hangs, though there is room", promise)

    async def take(self, link: Link) -> Frame:
        """Receive a frame that is there or on its way."""
        return await within(self.patience_s, link.receive(), "a frame that was sent did not arrive", "without loss")


def number_frame(number: int, *buffers: bytes) -> Frame:
    """Return a frame that can be told from others."""
    return Frame(number.to_bytes(NUMBER_BYTES, "big"), buffers)


def read_number(frame: Frame) -> int:
    """Return the number of such a frame."""
    return int.from_bytes(frame.header[:NUMBER_BYTES], "big")


async def send_numbers(link: Link, numbers: Sequence[int]) -> None:
    """Send a frame for each number, waiting for room as long as it takes; others get a turn after each."""
    for number in numbers:
        await link.send(number_frame(number))
        await asyncio.sleep(0)


async def take_numbers(link: Link, count: int, patience_s: float) -> list[int]:
    """Receive until ``count`` frames are there and no further one follows, or nothing comes any more."""
    taken: list[int] = []
    try:
        while True:
            async with asyncio.timeout(QUIET_S if len(taken) >= count else patience_s):
                taken.append(read_number(await link.receive()))
    except TimeoutError:
        return taken


def make_bytes(size: int) -> bytes:
    """Return bytes in which every place matters: two neighbouring blocks are never alike."""
    pattern = b"".join(number.to_bytes(4, "big") for number in range(4096))
    block = len(pattern)
    blocks = (number.to_bytes(8, "big") + pattern[8:] for number in range(-(-size // block)))
    return b"".join(blocks)[:size]
