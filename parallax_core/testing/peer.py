"""A node in its own process, for transports: ``python -m parallax_core.testing.peer REF PLAN``.

REF is the factory of the transport, ``module:name``, and PLAN the plan as JSON. The node listens, prints its address in
a line, and obeys the frames it receives; the first byte of a header is the command. It ends when its standard input
closes, so that it does not outlive the process that started it.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time
from collections.abc import Callable
from itertools import count

import msgspec

from parallax_core.base.errors import PeerLost
from parallax_core.base.refs import Ref
from parallax_core.contracts.transport import Frame, FrameLimits, Link, Transport, TransportPlan

ECHO = b"e"
"""Send this frame back."""
FLOOD = b"f"
"""Send frames for ever, numbered after this byte."""
HUSH = b"h"
"""Take no more frames."""
BUSY = b"b"
"""Keep the event loop busy for as many milliseconds as the rest of this header says, then send the frame back."""
HOLD = b"l"
"""Hold the interpreter lock for as many milliseconds as the rest of this header says, then send the frame back."""
EXCESS = b"x"
"""Send a frame with as many buffers as the rest of this header says."""


def hold_interpreter(seconds: float) -> None:
    """Wait with the interpreter lock held, as native code may."""
    ctypes.PyDLL(None).poll(None, 0, round(1000 * seconds))


WAITS: dict[bytes, Callable[[float], None]] = {BUSY: time.sleep, HOLD: hold_interpreter}


class PeerPlan(msgspec.Struct, frozen=True):
    """The arguments of the process, from its command line."""

    node: str
    listen: str
    credit: int
    timeout_s: float
    busy_s: float
    buffers: int
    """`FrameLimits.buffers`, so that it can send more than others take."""


async def serve_peer(factory: Callable[[TransportPlan], Transport], plan: PeerPlan) -> None:
    """Listen, and obey every link, until standard input ends."""
    limits = FrameLimits(buffers=plan.buffers)
    transport = factory(
        TransportPlan(
            node=plan.node,
            listen=plan.listen,
            credit=plan.credit,
            timeout_s=plan.timeout_s,
            busy_s=plan.busy_s,
            limits=limits,
        )
    )
    await transport.start()
    sys.stdout.write(f"{transport.address}\n")
    sys.stdout.flush()
    accepting = asyncio.create_task(accept_links(transport))
    await asyncio.to_thread(sys.stdin.read)
    accepting.cancel()
    await transport.stop()


async def accept_links(transport: Transport) -> None:
    """Obey each link as it comes."""
    tasks = set()
    while True:
        link = await transport.accept()
        task = asyncio.create_task(obey_link(link))
        tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(tasks.discard)


async def obey_link(link: Link) -> None:
    """Do what frames say, until the peer is lost."""
    try:
        while True:
            frame = await link.receive()
            match bytes(frame.header[:1]):
                case b"f":
                    for number in count():
                        await link.send(Frame(FLOOD + number.to_bytes(8, "big")))
                case b"h":
                    await asyncio.get_running_loop().create_future()
                case b"b" | b"l" as command:
                    WAITS[command](int(frame.header[1:]) / 1000)  # as long as that, nothing else is done
                    await link.send(frame)
                case b"x":
                    await link.send(Frame(EXCESS, (b"",) * int(frame.header[1:])))
                case _:
                    await link.send(frame)
    except PeerLost:
        return


def main() -> None:
    """Run the process."""
    reference, plan = sys.argv[1:]
    factory: Callable[[TransportPlan], Transport] = Ref[Callable[[TransportPlan], Transport]](reference).load()
    asyncio.run(serve_peer(factory, msgspec.json.decode(plan.encode(), type=PeerPlan)))


if __name__ == "__main__":
    main()
