"""The log of a server and its nodes is kept in memory, without bodies of requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from parallax_core.api import PeerLost
from parallax_core.testing.node_service import NodeServiceConformance
from parallax_observe.log_messages import NodeLine, NodeLines
from parallax_observe.log_service import LogSender, LogTaker
from parallax_observe.log_store import ACCESS, STORE, LogHandler, LogLine, LogStore
from parallax_observe.plugin import parallax_register_node_services
from tests.unit.server.letters import Site

LINE = NodeLine(1.8e9, "INFO", "some.logger", "loaded")


class TestLog(NodeServiceConformance):
    [spec] = parallax_register_node_services()
    distribution = "parallax-observe"
    samples = (NodeLines((LINE,)),)


def line(text: str) -> LogLine:
    return LogLine(1.0, "INFO", "some.logger", text)


@pytest.fixture
def logger() -> Iterator[tuple[LogStore, logging.Logger]]:
    """Return a store, and a logger whose records it gets."""
    store, logger = LogStore(), logging.getLogger("test_observe_log")
    logger.setLevel(logging.DEBUG)
    handler = LogHandler(store)
    logger.addHandler(handler)
    yield store, logger
    logger.removeHandler(handler)


def test_lines_are_listed_in_order_and_from_a_number_on() -> None:
    store = LogStore()
    store.add([line("a"), line("b")])
    store.add([line("c")], "mini/1")
    store.add([line("d")])
    assert [(each.text, each.node) for each in store.list(10)] == [("a", ""), ("b", ""), ("c", "mini/1"), ("d", "")]
    assert [each.text for each in store.list(2)] == ["c", "d"]
    assert [each.text for each in store.list(10, after=store.list(10)[1].number)] == ["c", "d"]
    assert [each.text for each in store.list(10, node="mini/1")] == ["c"]
    assert [each.text for each in store.list(10, node="")] == ["a", "b", "d"]
    assert store.list(10, node="unknown") == []


def test_node_that_logs_much_pushes_out_its_own_lines_alone() -> None:
    store = LogStore()
    store.add([line("own")])
    store.add([line("quiet")], "a/1")
    for number in range(300):
        store.add([line(str(number))], "b/1")
    assert [each.text for each in store.list(1000, node="")] == ["own"]
    assert [each.text for each in store.list(1000, node="a/1")] == ["quiet"]
    assert [each.text for each in store.list(1000, node="b/1")] == [str(each) for each in range(200, 300)]


def test_nodes_are_bounded() -> None:
    store = LogStore()
    for number in range(1100):
        store.add([line("x")], f"n/{number}")
    assert len(store.nodes) == 1024
    assert "n/0" not in store.nodes


def test_handler_keeps_records_with_tracebacks_but_no_debugging(logger: tuple[LogStore, logging.Logger]) -> None:
    store, log = logger
    log.debug("too much")
    log.info("hello node=%s", "mini/1")
    try:
        _ = {}["it broke"]  # type: ignore[index]
    except KeyError:
        log.exception("failed")
    info, failed = store.list(10)
    assert (info.level, info.logger, info.text) == ("INFO", "test_observe_log", "hello node=mini/1")
    assert failed.level == "ERROR"
    assert failed.text.startswith("failed\nTraceback")
    assert failed.text.endswith("KeyError: 'it broke'")


def test_bodies_of_requests_and_those_who_only_look_are_left_out() -> None:
    store = LogStore()
    handler = LogHandler(store)
    for text in ("POST /v1/completions 200 5 ms id=x body=b'secret'", "GET /v1/log?after=3 200 1 ms id=y"):
        handler.handle(logging.makeLogRecord({"name": ACCESS, "msg": text, "levelno": 20, "levelname": "INFO"}))
    assert [each.text for each in store.list(10)] == ["POST /v1/completions 200 5 ms id=x"]


@dataclass
class Peer:
    """A peer whose link ends after some messages."""

    name: str = "desk/1"
    address: str = ""
    sent: list[Any] = field(default_factory=list)

    @property
    def channel(self) -> Any:
        return self

    async def send(self, message: object) -> None:
        if len(self.sent) == 2:
            raise PeerLost("the head is gone")
        self.sent.append(message)


def test_node_sends_the_end_of_its_log_and_each_line_once() -> None:
    store = LogStore()
    store.add([line(str(number)) for number in range(20)])
    store.add([line("y" * 1000 + "end")])

    async def join(peer: Peer) -> None:
        sender = LogSender(store, 0.0)
        async with sender.joined(peer):
            for _ in range(10):
                await asyncio.sleep(0)
            store.add([line("later")])
            for _ in range(10):
                await asyncio.sleep(0)
        await sender.close()

    asyncio.run(join(peer := Peer()))
    first, second = peer.sent
    assert [each.text for each in first.lines[:-1]] == [str(number) for number in range(13, 20)]
    assert first.lines[-1].text == "…" + "y" * 496 + "end"
    assert [each.text for each in second.lines] == ["later"]


def test_sender_hears_the_log_of_its_process_until_it_is_closed() -> None:
    store = LogStore()
    sender = LogSender(store)
    logging.getLogger("test_observe_log.sender").warning("heard")
    asyncio.run(sender.close())
    logging.getLogger("test_observe_log.sender").warning("not heard")
    assert [each.text for each in store.list(10)] == ["heard"]


def test_head_keeps_lines_by_node_and_shows_them() -> None:
    async def hear() -> None:
        async with LogTaker(STORE).joined(Peer(name="node-of-this-test/1")) as takers:
            takers[NodeLines](NodeLines((LINE,)))

    asyncio.run(hear())
    with Site() as site:
        reply = site.client.get("/v1/log?node=node-of-this-test/1").json()
        assert [(each["text"], each["node"]) for each in reply["data"]] == [("loaded", "node-of-this-test/1")]
        assert "node-of-this-test/1" in reply["nodes"]
        logging.getLogger("test_observe_log.site").warning("of the head")
        lines = site.client.get("/v1/log?node=head&limit=2000").json()["data"]
        assert "of the head" in [each["text"] for each in lines]
        last = lines[-1]["number"]
        assert all(each["number"] > last for each in site.client.get(f"/v1/log?after={last}").json()["data"])
