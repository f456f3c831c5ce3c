from __future__ import annotations

import asyncio

import msgspec
import pytest

from parallax_cluster.deploy.node_finder import NodeFinder, admit_members, check_head
from parallax_cluster.membership.announcement import ClusterSecret
from parallax_cluster.membership.calls import LayerOffer, find_calls, find_offers, read_call
from parallax_core.base.errors import ParallaxError
from tests.unit.deploy.local_rendezvous import HeadMethod, LocalRendezvous, open_rendezvous
from tests.unit.node.cluster import until

SECRET = ClusterSecret(b"s" * 16)


class Others:
    """Admits one machine, which has a join code."""

    def __init__(self) -> None:
        self.admitted: list[bytes] = []

    def knows(self, proof: bytes) -> bool:
        return proof == b"code"

    def admit(self, proof: bytes, key: bytes) -> None:
        if proof != b"code":
            raise ParallaxError("unknown")
        self.admitted.append(key)


def test_members_are_admitted_besides_those_with_a_code() -> None:
    others = Others()
    admission = admit_members(LocalRendezvous("head", [], [SECRET], HeadMethod()), others)  # type: ignore[arg-type]
    member = b"proof of " + SECRET.enrolment
    assert [admission.knows(each) for each in (member, b"code", b"proof of " + SECRET.secret)] == [True, True, False]
    admission.admit(member, b"key")
    admission.admit(b"code", b"other key")
    assert others.admitted == [b"other key"]
    with pytest.raises(ParallaxError):
        admission.admit(b"stranger", b"key")


async def test_nodes_with_layers_of_the_model_are_called_as_long_as_they_announce_them() -> None:
    async with open_rendezvous() as registry:
        finder = NodeFinder(LocalRendezvous("head", [registry], [SECRET]), "hf:org/model", 30, b"head")  # type: ignore[arg-type]
        offers = {
            "good": LayerOffer("hf:org/model", 0, 15),
            "other": LayerOffer("hf:org/other", 0, 15),
            "long": LayerOffer("hf:org/model", 15, 31),
            "empty": LayerOffer("hf:org/model", 15, 15),
        }
        nodes = {name: LocalRendezvous(name, [registry], [SECRET]) for name in offers}
        announcers = {name: node.make_announcer() for name, node in nodes.items()}
        watch = LocalRendezvous("watch", [registry], [SECRET])
        topics = {name: find_calls(SECRET, each.signer, each.number) for name, each in announcers.items()}
        async with finder.calling(), watch.linked(watch.make_announcer(), lambda: None) as [client]:
            client.follow(list(topics.values()))
            async with (
                nodes["good"].linked(announcers["good"], lambda: None) as [good],
                nodes["other"].linked(announcers["other"], lambda: None) as [other],
                nodes["long"].linked(announcers["long"], lambda: None) as [long],
                nodes["empty"].linked(announcers["empty"], lambda: None) as [empty],
            ):
                for name, each in (("other", other), ("long", long), ("empty", empty), ("good", good)):
                    each.announce(find_offers(SECRET), msgspec.msgpack.encode(offers[name]))
                await until(lambda: bool(client.list_current(topics["good"])))
                [announced] = client.list_current(topics["good"])
                found = read_call(announced)
                assert found is not None
                assert found.head == b"head"
                await asyncio.sleep(0.2)
                assert [name for name in topics if client.list_current(topics[name])] == ["good"]
                good.announce(find_offers(SECRET), b"")
                await until(lambda: not client.list_current(topics["good"]))


def test_server_that_others_cannot_reach_is_told() -> None:
    assert check_head(b"head") == b"head"
    with pytest.raises(ParallaxError, match="cannot reach this server"):
        check_head(b"")
