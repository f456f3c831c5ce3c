from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parallax_cluster.deploy.announced import AnnouncedNode, make_announced
from parallax_cluster.membership.announcement import ClusterSecret
from parallax_cluster.membership.calls import HeadCall, LayerOffer, find_calls, find_offers, read_offer
from parallax_cluster.membership.join_code import JoinCode, write_code
from parallax_cluster.node.membership.rendezvous_client import RendezvousClient
from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.config.config import Config
from parallax_core.config.worker import WorkerSettings
from parallax_core.plugins.host import PluginHost
from tests.unit.deploy.local_rendezvous import HeadMethod, LocalRendezvous, at_home, open_rendezvous
from tests.unit.node.cluster import soon, until

SECRET, OTHER = ClusterSecret(b"s" * 16), ClusterSecret(b"t" * 16)
OFFER = LayerOffer("hf:org/model", 0, 15)


def make_node(rendezvous: LocalRendezvous) -> AnnouncedNode:
    return AnnouncedNode(rendezvous, OFFER, rendezvous.make_announcer())  # type: ignore[arg-type]


def call(client: RendezvousClient, node: AnnouncedNode, head: bytes) -> None:
    topic = find_calls(client.secret, node.announcer.signer, node.announcer.number)
    client.announce(topic, msgspec.msgpack.encode(HeadCall(head)))


async def test_node_announces_itself_until_a_head_admits_it() -> None:
    async with open_rendezvous() as registry:
        node = make_node(LocalRendezvous("node", [registry], [SECRET], HeadMethod(b"second")))
        head, other = LocalRendezvous("head", [registry], [SECRET]), LocalRendezvous("other", [registry], [SECRET])
        waiting = asyncio.create_task(node.await_head())
        async with (
            head.linked(head.make_announcer(), lambda: None) as [client],
            other.linked(other.make_announcer(), lambda: None) as [other_client],
        ):
            client.follow([topic := find_offers(SECRET)])
            await until(lambda: bool(client.list_current(topic)))
            [announced] = client.list_current(topic)
            assert (read_offer(announced), announced.signer) == (OFFER, node.announcer.signer)
            call(other_client, node, b"first")
            await until(lambda: bool(node.codes.method.asked))  # type: ignore[attr-defined]
            assert not waiting.done(), "the first head has not admitted it"
            call(client, node, b"second")
            found = await soon(waiting)
            assert (found.address, found.head, found.transport) == ("second", b"second", "inprocess")
            secrets = {secret for _, secret in node.codes.method.asked}  # type: ignore[attr-defined]
            assert secrets == {SECRET.enrolment}
            await until(lambda: not client.list_current(topic))


async def test_call_of_a_stranger_or_for_another_node_is_not_answered() -> None:
    async with open_rendezvous() as registry:
        node = make_node(LocalRendezvous("node", [registry], [SECRET], HeadMethod(b"head", b"stranger")))
        waiting = asyncio.create_task(node.await_head())
        stranger, head = LocalRendezvous("stranger", [registry], [OTHER]), LocalRendezvous("head", [registry], [SECRET])
        async with (
            stranger.linked(stranger.make_announcer(), lambda: None) as [strange],
            head.linked(head.make_announcer(), lambda: None) as [client],
        ):
            topic = find_calls(SECRET, node.announcer.signer, node.announcer.number)
            strange.announce(topic, msgspec.msgpack.encode(HeadCall(b"stranger")))
            client.announce(find_calls(SECRET, node.announcer.signer, 99), msgspec.msgpack.encode(HeadCall(b"head")))
            client.follow([topic])
            await asyncio.sleep(0.3)
            assert (waiting.done(), node.codes.method.asked) == (False, [])  # type: ignore[attr-defined]
            client.announce(topic, b"garbage")
            await asyncio.sleep(0.2)
            call(client, node, b"damaged")
            await asyncio.sleep(0.2)
            assert (waiting.done(), node.codes.method.asked) == (False, [])  # type: ignore[attr-defined]
            call(client, node, b"head")
            assert (await soon(waiting)).head == b"head"


async def test_head_that_was_lost_is_not_tried_again_at_once() -> None:
    async with open_rendezvous() as registry:
        node = make_node(LocalRendezvous("node", [registry], [SECRET], HeadMethod(b"head", b"next")))
        node.shun(b"head")
        waiting = asyncio.create_task(node.await_head())
        head, other = LocalRendezvous("head", [registry], [SECRET]), LocalRendezvous("next", [registry], [SECRET])
        async with head.linked(head.make_announcer(), lambda: None) as [client]:
            call(client, node, b"head")
            await asyncio.sleep(0.3)
            assert not waiting.done()
            async with other.linked(other.make_announcer(), lambda: None) as [next_client]:
                call(next_client, node, b"next")
                assert (await soon(waiting)).head == b"next"


async def test_one_rendezvous_of_several_is_enough() -> None:
    async with open_rendezvous() as first, open_rendezvous() as second:
        node = make_node(LocalRendezvous("node", [first, second], [OTHER, SECRET], HeadMethod(b"head")))
        waiting = asyncio.create_task(node.await_head())
        head = LocalRendezvous("head", [second], [SECRET])
        async with head.linked(head.make_announcer(), lambda: None) as [client]:
            call(client, node, b"head")
            assert (await soon(waiting)).head == b"head"


CODE = write_code(JoinCode(transport="zmq", secret=bytes(16), head=b"k" * 32 + b"127.0.0.1:1"))
GIVEN: dict[str, Any] = {"model": "org/model", "layers": "0-15", "announce": (CODE,), "backend": "mlx"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": ""}, "needs a model, --layers and --announce"),
        ({"layers": None}, "needs a model, --layers and --announce"),
        ({"announce": ()}, "needs a model, --layers and --announce"),
        ({"connect": "tcp://10.0.0.5:9000"}, "--connect and --announce contradict each other"),
        ({"layers": "15-15"}, "15-15 are no layers"),
        ({"announce": ("tcp://10.0.0.5:1",)}, "not a join code"),
    ],
)
def test_settings_that_do_not_fit_are_told(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with at_home(tmp_path), pytest.raises(UsageError, match=told):
        make_announced(WorkerSettings(**{**GIVEN, **changes}), PluginHost.discover(Config()))


def test_unknown_model_and_a_rendezvous_that_is_not_there_are_told(tmp_path: Path) -> None:
    plugins = PluginHost.discover(Config())
    with at_home(tmp_path), pytest.raises(ParallaxError, match="none-such"):
        make_announced(WorkerSettings(**{**GIVEN, "model": "none-such:x"}), plugins)
    with at_home(tmp_path), pytest.raises(ParallaxError, match="no server answers"):
        make_announced(WorkerSettings(**GIVEN), plugins)
