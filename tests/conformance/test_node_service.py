"""The kit for node services passes a good service, and catches a fault of each sort."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
import pytest

from parallax_cluster.node.worker.further import FurtherNodes
from parallax_cluster.node.worker.leases import NodeLeases
from parallax_cluster.offers import NODE_SERVICES
from parallax_core.api import (
    Epoch,
    JoinedPeer,
    LinkPurpose,
    NodeService,
    NodeServiceSpec,
    PeerLost,
    Ref,
    ServiceMessage,
    service_tag,
)
from parallax_core.contracts.node_service import Takers
from parallax_core.testing.node_service import NodeServiceConformance, Side
from parallax_core.testing.service_message import MessageConformance
from parallax_core.wire.messages import Heartbeat
from tests.conformance.harness import find_failures, list_tests, run_test
from tests.unit.wire.make_golden_frames import SAMPLES

OURS = "parallax-thermometer"


class Reading(ServiceMessage, frozen=True, tag=service_tag(OURS, 0)):
    most_bytes: ClassVar[int] = 64
    most_per_s: ClassVar[float] = 10.0

    celsius: Annotated[float, msgspec.Meta(ge=-300, le=10_000)]
    place: Annotated[str, msgspec.Meta(max_length=8)] = ""

    def check(self) -> None:
        if not self.place.isascii():
            raise ValueError("the place is not ASCII")


class Ask(ServiceMessage, frozen=True, tag=service_tag(OURS, 1)):
    pass


class Sensor(NodeService):
    """Answers what the head asks."""

    burst = 1

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        tasks: set[asyncio.Task[None]] = set()
        try:
            yield {Ask: partial(self.answer, peer, tasks)}
        finally:
            for task in tasks:
                task.cancel()

    def answer(self, peer: JoinedPeer, tasks: set[asyncio.Task[None]], _: Ask) -> None:
        tasks.add(task := asyncio.create_task(self.send(peer)))
        task.add_done_callback(tasks.discard)

    async def send(self, peer: JoinedPeer) -> None:
        for _ in range(self.burst):
            await peer.channel.send(Reading(20.5, "hall"))


async def echo(link: Any) -> None:
    try:
        await link.receive()
    finally:
        await link.leave()


class Display(NodeService):
    """Asks nodes, and notes their answers while they are there."""

    def __init__(self) -> None:
        self.shown: dict[str, float] = {}
        self.serve: Callable[[Any], Any] = echo

    @property
    def purposes(self) -> Mapping[str, LinkPurpose]:
        return {"thermometer": LinkPurpose(serve=self.serve)}

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        asking = asyncio.create_task(self.ask(peer))
        try:
            yield {Reading: partial(self.note, peer)}
        finally:
            self.shown.pop(peer.name, None)
            asking.cancel()

    async def ask(self, peer: JoinedPeer) -> None:
        await peer.channel.send(Ask())
        await asyncio.Event().wait()

    def note(self, peer: JoinedPeer, message: Reading) -> None:
        self.shown[peer.name] = message.celsius


def make_sensor(_: object) -> Sensor:
    return Sensor()


def make_display(_: object) -> Display:
    return Display()


ALL = (Reading, Ask)


class TestThermometer(NodeServiceConformance):
    """A good service passes."""

    spec = NodeServiceSpec(
        name="thermometer",
        summary="how warm nodes are",
        messages=Ref(f"{__name__}:ALL"),
        node=Ref(f"{__name__}:make_sensor"),
        head=Ref(f"{__name__}:make_display"),
    )
    distribution = OURS
    samples = (Reading(-273.15, "basement"), Ask())


OF_CLUSTER = {spec.name: spec for spec in NODE_SERVICES}
GOLDEN = [sample for sample in SAMPLES.values() if isinstance(sample, ServiceMessage)]


class OfCluster(NodeServiceConformance):
    """A service of the cluster, with the messages whose frames are recorded."""

    distribution = "parallax-cluster"

    @property
    def samples(self) -> Sequence[ServiceMessage]:  # type: ignore[override]
        """Return its messages."""
        return [sample for sample in GOLDEN if type(sample) in self.kinds]


class TestLeases(OfCluster):
    """Leases pass."""

    spec = OF_CLUSTER["leases"]

    async def make_service(self, side: Side) -> NodeService | None:
        return NodeLeases("kit/1") if side == "node" else None


class TestFurtherNodes(OfCluster):
    """Further nodes pass."""

    spec = OF_CLUSTER["further"]

    async def make_service(self, side: Side) -> NodeService | None:
        return FurtherNodes("kit/1") if side == "node" else None


@pytest.mark.parametrize("name", OF_CLUSTER)
def test_messages_of_the_cluster_pass(name: str) -> None:
    class Kit(OfCluster):
        spec = OF_CLUSTER[name]

    assert {each: run_test(Kit, each) for each in list_tests(MessageConformance)} == dict.fromkeys(EVERY_MESSAGE, "")


class Foreign(ServiceMessage, frozen=True, tag=service_tag("another", 0)):
    pass


class Twin(ServiceMessage, frozen=True, tag=service_tag(OURS, 1)):
    pass


class Loose(ServiceMessage, frozen=True, tag=service_tag(OURS, 2)):
    words: tuple[str, ...] = ()
    rest: Any = None


class Large(ServiceMessage, frozen=True, tag=service_tag(OURS, 3)):
    most_bytes: ClassVar[int] = 32

    text: Annotated[str, msgspec.Meta(max_length=100)]


class Tolerant(ServiceMessage, frozen=True, forbid_unknown_fields=False, tag=service_tag(OURS, 4)):
    number: Annotated[int, msgspec.Meta(ge=0, le=9)]


class Rash(ServiceMessage, frozen=True, tag=service_tag(OURS, 5)):
    parts: Annotated[tuple[int, ...], msgspec.Meta(max_length=9)]

    def check(self) -> None:
        if self.parts[0] < 0:
            raise ValueError("the first part is negative")


class Changing(ServiceMessage, frozen=True, tag=service_tag(OURS, 6)):
    number: Annotated[int, msgspec.Meta(ge=0, le=9)]

    def tidy(self) -> Changing:
        return Changing(min(self.number + 1, 9))


TAGS, BOUNDED = "test_tags_are_those_of_the_distribution", "test_fields_are_bounded"
ARRIVE, JUNK = "test_samples_arrive_as_they_were_sent", "test_junk_is_refused"
EVERY_MESSAGE = {TAGS, BOUNDED, ARRIVE, JUNK}


@pytest.mark.parametrize(
    ("sample", "test", "words"),
    [
        (Foreign(), TAGS, "which is not one of those of parallax-thermometer"),
        (Twin(), TAGS, "have the same tag"),
        (Loose(), BOUNDED, "a Loose holds Any, Str, VarTuple without a bound"),
        (Large("x" * 99), ARRIVE, "at most 32 are allowed"),
        (Tolerant(3), JUNK, "a Tolerant with junk is accepted"),
        (Rash((1, 2)), JUNK, "makes its check raise IndexError"),
        (Changing(3), ARRIVE, "arrives as"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ServiceMessage) else "",
)
def test_kit_catches_a_fault_of_a_message(sample: ServiceMessage, test: str, words: str) -> None:
    samples = (*TestThermometer.samples, sample)
    kit = type(
        "Kit",
        (MessageConformance,),
        {"kinds": [type(each) for each in samples], "samples": samples, "distribution": OURS},
    )
    assert words in find_failures(kit)[test]


def test_message_without_a_sample_is_told() -> None:
    kit = type("Kit", (TestThermometer,), {"samples": (Ask(),)})
    assert "there is no sample of Reading" in find_failures(kit)[ARRIVE]


class Blocking(Display):
    def note(self, peer: JoinedPeer, message: Reading) -> None:
        time.sleep(0.15)
        super().note(peer, message)


class Failing(Display):
    def note(self, peer: JoinedPeer, message: Reading) -> None:
        self.shown[peer.name] = 1 / message.celsius


class Awaited(Display):
    async def note(self, peer: JoinedPeer, message: Reading) -> None:  # type: ignore[override]
        super().note(peer, message)


class Keeping(Display):
    """Keeps the nodes that have joined."""

    def __init__(self) -> None:
        super().__init__()
        self.peers: list[JoinedPeer] = []

    def note(self, peer: JoinedPeer, message: Reading) -> None:
        self.peers.append(peer)


class Forgetful(Display):
    """Runs on for nodes that have left."""

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        self.asking = asyncio.create_task(self.ask(peer))
        yield {Reading: partial(self.note, peer)}

    async def ask(self, peer: JoinedPeer) -> None:
        del peer
        await asyncio.Event().wait()


class Waiting(Display):
    """Waits until a node reads."""

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        await peer.channel.send(Ask())
        yield {}


class Fragile(Display):
    """Takes the loss of a node for something else."""

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        try:
            await asyncio.wait_for(peer.channel.send(Ask()), 0.1)
        except PeerLost as error:
            raise LookupError("no node") from error
        except TimeoutError:
            pass
        yield {}


class Talkative(Sensor):
    burst = 30


class Borrowing(Sensor):
    """Sends a message of core."""

    async def send(self, peer: JoinedPeer) -> None:
        await peer.channel.send(Heartbeat(Epoch(0), 0, 0))


class Oversized(Sensor):
    async def send(self, peer: JoinedPeer) -> None:
        await peer.channel.send(Reading(20.5, "x" * 100))


class Broken(Display):
    async def run(self) -> None:
        raise LookupError("no sensor")


class Stubborn(Display):
    """Runs on when it is cancelled."""

    async def run(self) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.2)
                return


class Once(Display):
    """Can be closed once."""

    async def close(self) -> None:
        del self.serve


async def hang(link: Any) -> None:
    with contextlib.suppress(PeerLost):
        await link.receive()
    await asyncio.Event().wait()


class Deaf(Display):
    """Does not end links."""

    def __init__(self) -> None:
        super().__init__()
        self.serve = hang


HANDLES, LIMITS = "test_handlers_take_messages_at_once", "test_both_sides_keep_to_their_limits"
WAITS, LOST, LEFT = (
    "test_service_waits_for_no_peer",
    "test_lost_peer_is_no_fault",
    "test_nothing_is_left_of_a_peer",
)
ENDS, LINKS = "test_service_ends_when_it_is_told", "test_links_end_with_their_peers"


@pytest.mark.parametrize(
    ("service", "test", "words"),
    [
        (Blocking, HANDLES, "a handler blocks the event loop"),
        (Failing, HANDLES, "makes its handler raise ZeroDivisionError"),
        (Awaited, HANDLES, "a handler has to be awaited"),
        (Keeping, LEFT, "it keeps a peer that has left"),
        (Forgetful, LEFT, "tasks run on for a peer that has left"),
        (Waiting, WAITS, "it waits for a peer that reads nothing"),
        (Fragile, LOST, "LookupError"),
        (Talkative, LIMITS, "it sends more than 10 of Reading per second"),
        (Borrowing, LIMITS, "it sends a Heartbeat, which is none of its messages"),
        (Oversized, LIMITS, "at most 64 are allowed"),
        (Broken, LIMITS, "it has ended with LookupError"),
        (Stubborn, ENDS, "it runs on when it is cancelled"),
        (Once, ENDS, "AttributeError"),
        (Deaf, LINKS, "a link for 'thermometer' does not end"),
    ],
)
def test_kit_catches_a_fault_of_a_service(service: type[NodeService], test: str, words: str) -> None:
    class Kit(TestThermometer):
        patience_s = 0.15

        async def make_service(self, side: Side) -> NodeService | None:
            is_faulty = side == ("node" if issubclass(service, Sensor) else "head")
            return service() if is_faulty else await super().make_service(side)

    found = find_failures(Kit)
    assert found.keys() == {test}
    assert words in found[test]


def test_service_that_is_none_is_told() -> None:
    spec = dataclasses.replace(TestThermometer.spec, head=Ref("builtins:repr"))
    assert (
        'the service of the head is "KitContext' in find_failures(type("Kit", (TestThermometer,), {"spec": spec}))[LEFT]
    )


def test_every_test_of_the_kit_is_shown_to_catch_something() -> None:
    assert set(list_tests(MessageConformance)) == EVERY_MESSAGE
    assert set(list_tests(NodeServiceConformance)) == {
        *list_tests(MessageConformance),
        HANDLES,
        LIMITS,
        WAITS,
        LOST,
        LEFT,
        ENDS,
        LINKS,
    }
