from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from parallax_cluster.membership.term_proof import write_proof
from parallax_cluster.node.worker.terms import HeadTerms
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.succession import Succession
from parallax_core.api import TransportPlan
from parallax_core.base.errors import IncompatibleNode, ParallaxError, PeerLost, StageLost, UnusableAddress
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.worker import rejoin
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.rejoin import TRIES, HeadPlace, HeadSearch, serve_again
from parallax_core.wire.membership import Join
from plugins.cluster.tests.membership.terms import OLD as OLD_HEAD
from plugins.cluster.tests.membership.terms import ONE as STANDBY

OLD, NEW, OTHER = "tcp://old:1", "tcp://new:1", "tcp://other:1"
JOIN = Join("tcp://here:1", (), "here", 0)


class Session:
    """A session whose head is lost ``num_losses`` times, and then has released the node."""

    def __init__(self, num_losses: int, error: ParallaxError | None = None) -> None:
        self.num_losses = num_losses
        self.tried: list[str] = []
        self.is_leaving = False
        self.services = NodeServices(InProcessTransport(TransportPlan(node="here/1")))
        self.error = error or PeerLost("nobody is there", "start it")

    async def serve(self, address: str, head: str, join: Join) -> None:
        assert (head, join) == ("head", JOIN)
        self.tried.append(address)
        if len(self.tried) <= self.num_losses:
            raise self.error


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejoin, "AGAIN_S", (0.001,))


async def serve(session: Any, *found: str) -> HeadPlace:
    place = HeadPlace(OLD, "head", "here/1")

    async def seek(timeout_s: float) -> Sequence[str]:
        assert timeout_s == rejoin.AGAIN_S[0]
        if not found:
            raise ParallaxError("this machine is on no network")
        return found

    await serve_again(session, place, JOIN, seek)
    return place


async def test_node_that_was_called_gives_up_after_its_tries() -> None:
    session: Any = Session(10)
    with pytest.raises(PeerLost):
        await serve_again(session, HeadPlace(OLD, "head", "here/1"), JOIN, None, 3)
    assert session.tried == [OLD] * 4, "the first one is no try again"
    once: Any = Session(3)
    await serve_again(once, HeadPlace(OLD, "head", "here/1"), JOIN, None, 3)


async def test_head_that_has_moved_is_found() -> None:
    session = Session(TRIES)
    place = await serve(session, NEW)
    assert session.tried == [OLD] * TRIES + [NEW]
    assert place.address == NEW, "the clients of this machine follow"


async def test_every_address_is_tried_and_the_old_one_again() -> None:
    session = Session(4 * TRIES - 1)
    assert (await serve(session, NEW, OLD, OTHER)).address == OLD
    assert session.tried == [OLD] * TRIES + [NEW] * TRIES + [OTHER] * TRIES + [OLD] * TRIES


async def test_node_turns_to_the_standbys_of_its_head_with_their_keys() -> None:
    session, keys = Session(3 * TRIES), {"head": b"old key"}
    session.services.add(terms := HeadTerms(OLD, keys))
    terms.note(Succession(write_proof(OLD_HEAD.begin()), (Peer("head", OTHER, b"other key"),)))
    assert (await serve(session, NEW)).address == OLD
    assert session.tried == [OLD] * TRIES + [NEW] * TRIES + [OTHER] * TRIES + [OLD]
    assert keys == {"head": b"old key"}
    terms.choose_head(OTHER)
    assert keys == {"head": b"other key"}


async def test_node_whose_new_head_is_lost_tries_the_one_that_the_user_named_too() -> None:
    session, keys = Session(3 * TRIES), {"head": b"old key"}
    session.services.add(terms := HeadTerms(OLD, keys))
    place = HeadPlace(OLD, "head", "here/1")
    search = HeadSearch(session, place, None)  # type: ignore[arg-type]
    terms.note(Succession(write_proof(OLD_HEAD.begin()), (Peer("head", OTHER, b"other key"),)))
    lost = PeerLost("nobody is there")
    for _ in range(TRIES):
        await search.turn(lost)
    assert (place.address, keys) == (OTHER, {"head": b"other key"})
    terms.note(Succession(write_proof(STANDBY.begin())))
    search.restart()
    for _ in range(TRIES):
        await search.turn(lost)
    assert (place.address, keys) == (OLD, {"head": b"old key"})


async def test_waits_grow_with_the_attempts_and_begin_anew_with_a_head_that_was_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rejoin, "AGAIN_S", (0.001, 0.002, 0.003))
    search = HeadSearch(Session(9), HeadPlace(OLD, "head", "here/1"), None)  # type: ignore[arg-type]
    for _ in range(2):
        for _ in range(4):
            await search.turn(PeerLost("nobody is there"))
        search.restart()
    waits = [float(message.partition("again in ")[2].split()[0]) for message in caplog.messages]
    assert waits == [0.001, 0.002, 0.003, 0.003] * 2


async def test_without_discovery_the_old_address_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    session: Any = Session(5)
    await serve_again(session, HeadPlace(OLD, "head", "here/1"), JOIN)
    assert session.tried == [OLD] * 6
    assert f"no head at {OLD}, trying again in 0.001 s: nobody is there; start it" in caplog.text


async def test_network_that_cannot_be_asked_is_no_error() -> None:
    session = Session(2)
    await serve(session)
    assert session.tried == [OLD] * 3


ENDS = [
    StageLost("the stage is lost"),
    UnusableAddress("the address is invalid"),
    IncompatibleNode("it is another version"),
]


async def test_address_of_another_transport_is_skipped() -> None:
    class MixedSession(Session):
        async def serve(self, address: str, head: str, join: Join) -> None:
            if address == NEW:
                self.tried.append(address)
                raise UnusableAddress(f"{address!r} is not an address")
            await super().serve(address, head, join)

    session = MixedSession(4 * TRIES)
    assert (await serve(session, NEW, OTHER)).address in {OLD, OTHER}
    assert session.tried.count(NEW) == 1


@pytest.mark.parametrize("error", ENDS)
async def test_other_errors_end_the_node(error: ParallaxError) -> None:
    with pytest.raises(type(error), match=error.message):
        await serve(Session(1, error), NEW)


async def test_head_that_is_lost_while_the_node_leaves_is_not_joined_again() -> None:
    session = Session(1)
    session.is_leaving = True
    with pytest.raises(PeerLost):
        await serve(session, NEW)
    assert session.tried == [OLD]
