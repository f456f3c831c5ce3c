"""Adapters come to the nodes whose stages need them, only their layers, whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from parallax_adapters.copies import AdapterCopies, LocalLayers
from parallax_adapters.messages import (
    MOST_LIST,
    PIECE,
    AdapterAsk,
    AdapterGone,
    AdapterHeld,
    AdapterOffer,
    AdapterPiece,
    AdapterRoom,
)
from parallax_adapters.plugin import parallax_register_node_services
from parallax_adapters.room import KeptRoom
from parallax_adapters.settings import CHOSEN, AdapterSettings
from parallax_adapters.sharing import AdapterSharing
from parallax_adapters.store import AdapterStore, make_key
from parallax_core.api import LayerRange, ParallaxError, PeerLost, ServiceMessage
from parallax_core.testing.node_service import NodeServiceConformance
from tests.support.tiny_adapters import make_matrices, write_adapter

SIZES = {f"layers.{layer}.mlp.up_proj": (3000, 20) for layer in range(6)}
LISTED = b"{}"
KEY = make_key(LISTED)


class TestAdapters(NodeServiceConformance):
    [spec] = parallax_register_node_services()
    distribution = "parallax-adapters"
    samples = (
        AdapterOffer(KEY, b"x" * MOST_LIST),
        AdapterAsk(KEY, "layer-1.safetensors", 2**33),
        AdapterPiece(KEY, "layer-1.safetensors", 2**33, b"x" * PIECE),
        AdapterHeld(KEY, "the disk is full"),
        AdapterGone(KEY),
        AdapterRoom(2**20, 2**20),
    )

    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))


@dataclass(eq=False)
class Holder:
    """What has layers."""

    layers: LayerRange
    prepared: list[str] = field(default_factory=list)

    def prepare(self, key: str) -> None:
        self.prepared.append(key)


class End:
    """One end of a link that gives messages to the takers of the other end, one after the other."""

    def __init__(self, name: str) -> None:
        self.name, self.address, self.sent = name, "", list[ServiceMessage]()
        self.takers: Any = {}
        self.back = self
        self.change: Callable[[ServiceMessage], ServiceMessage] = lambda message: message

    @property
    def channel(self) -> Any:
        return self

    async def send(self, message: ServiceMessage) -> None:
        self.sent.append(message)
        await asyncio.sleep(0)
        message = self.change(message)
        self.takers[type(message)](message)


class Machines:
    """A head, and nodes with layers, each with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = AdapterStore(folder / "head")
        self.head = AdapterSharing(lambda: self.store)

    def load(self, seed: int = 0) -> str:
        """Load an adapter at the head."""
        key = self.store.add(write_adapter(self.folder / f"made-{seed}", make_matrices(SIZES, seed=seed)))
        self.head.offer(key, self.store.read_list(key))
        return key

    @asynccontextmanager
    async def join(self, name: str, holders: Sequence[Holder]) -> AsyncIterator[tuple[AdapterStore, End, LocalLayers]]:
        """Join a node; give its store, the end of the link to it, and its layers."""
        store, layers = AdapterStore(self.folder / name), LocalLayers()
        for holder in holders:
            layers.add(holder)
        near, far = End(name), End("head")
        near.back = far
        node = AdapterCopies(layers, lambda: store)
        async with node.joined(far) as near.takers, self.head.joined(near) as far.takers:
            yield store, near, layers


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 -- the store tells nobody
            await asyncio.sleep(0.01)


async def test_nodes_get_their_layers_only(machines: Machines) -> None:
    one, two = Holder(LayerRange(0, 2)), Holder(LayerRange(2, 6))
    async with machines.join("one", [one]) as (first, link, _), machines.join("two", [two]) as (second, _, _):
        key = machines.load()
        await machines.head.spread(key)
        assert first.has(key, one.layers)
        assert not first.has(key, LayerRange(2, 3))
        assert one.prepared == two.prepared == [key]
        assert second.open(key, two.layers).modules.keys() == set(list(SIZES)[2:])
        pieces = [message for message in link.sent if isinstance(message, AdapterPiece)]
        assert {piece.name for piece in pieces} == {f"layer-{n}.safetensors" for n in (0, 1)} | {"adapter_config.json"}
        assert sum(len(piece.data) for piece in pieces) < 0.4 * sum(
            file.size for file in machines.store.list_files(key).values()
        )


async def test_node_that_joins_later_and_one_with_a_new_stage_get_what_they_lack(machines: Machines) -> None:
    keys = [machines.load(seed) for seed in range(2)]
    one, two = Holder(LayerRange(0, 2)), Holder(LayerRange(1, 6))
    async with machines.join("one", [one]) as (store, link, layers):
        await wait_until(lambda: all(store.has(key, one.layers) for key in keys))
        asked = len(link.sent)
        await asyncio.to_thread(layers.add, two)  # it has all when this returns
        assert all(store.has(key, two.layers) for key in keys)
        new = {message.name for message in link.sent[asked:] if isinstance(message, AdapterPiece)}
        assert new == {f"layer-{number}.safetensors" for number in range(2, 6)}
    async with machines.join("one", [two]) as (store, link, _):  # again, with what it had
        await machines.head.spread(keys[0])
        assert not any(isinstance(message, AdapterPiece) for message in link.sent)


async def test_node_removes_its_copies_and_never_what_was_loaded_on_its_machine(machines: Machines) -> None:
    all_layers = [Holder(LayerRange(0, 9))]
    joining = machines.join("one", all_layers), machines.join("head", all_layers)
    async with joining[0] as (copy, _, _), joining[1] as (own, link, _):
        key = machines.load()
        await machines.head.spread(key)
        assert not any(isinstance(message, AdapterPiece) for message in link.sent), "it is on the head's machine"
        machines.head.withdraw(key)
        await wait_until(lambda: not copy.has(key))
        assert own.has(key)


async def test_damaged_piece_is_refused_and_asked_for_again(
    machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    holder = Holder(LayerRange(0, 9))
    async with machines.join("one", [holder]) as (store, link, layers):
        key = machines.load()
        bad = b"\0" * 100
        link.change = lambda each: AdapterPiece(each.key, each.name, 0, bad) if isinstance(each, AdapterPiece) else each
        await machines.head.spread(key)
        assert "has arrived damaged" in caplog.text
        assert not store.has(key, holder.layers)
        link.change = lambda each: each
        await asyncio.to_thread(layers.fetch, key)  # as a stage does that lacks it
        assert store.has(key, holder.layers)


async def test_nodes_are_told_the_room_to_keep_before_anything_else(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = machines.load()
    async with machines.join("one", [Holder(LayerRange(0, 2))]) as (_, link, layers):
        await machines.head.spread(key)
        assert layers.find_room() == KeptRoom(), "nothing is kept by default"
    monkeypatch.setattr(CHOSEN, "settings", AdapterSettings(reserve=True, max_adapters=4, max_rank=16))
    async with machines.join("two", [Holder(LayerRange(0, 2))]) as (_, link, layers):
        monkeypatch.setattr(CHOSEN, "settings", AdapterSettings(max_adapters=99))  # what the node itself has
        await machines.head.spread(key)
        assert link.sent[0] == AdapterRoom(4, 16)
        assert layers.find_room() == KeptRoom(4, 16)
    assert layers.find_room() == KeptRoom()


def test_room_that_does_not_fit_is_refused() -> None:
    room = KeptRoom(4, 16)
    assert room.weigh(2, more=1) == 5 * 16 * 2
    assert (room.take(1000, 600), KeptRoom().take(1000, 0)) == (400, 1000)
    with pytest.raises(ParallaxError, match="4 adapters of rank 16 take 1000 bytes beside these layers, and 999 bytes"):
        room.take(999, 1000)


async def test_node_that_is_lost_holds_up_nobody(machines: Machines) -> None:
    async with machines.join("one", [Holder(LayerRange(0, 9))]) as (store, _, _):
        lost = machines.join("two", [Holder(LayerRange(0, 9))])
        _, link, _ = await lost.__aenter__()
        link.change = lambda each: AdapterGone(KEY) if isinstance(each, AdapterPiece) else each  # nothing arrives
        key = machines.load()
        spreading = asyncio.create_task(machines.head.spread(key))
        await wait_until(lambda: store.has(key))
        await asyncio.sleep(0.05)
        assert not spreading.done()
        await lost.__aexit__(None, None, None)
        await asyncio.wait_for(spreading, 5)


async def test_unloaded_adapter_is_sent_to_nobody(machines: Machines) -> None:
    key = machines.load()
    machines.head.withdraw(key)
    async with machines.join("one", [Holder(LayerRange(0, 9))]) as (_, link, _):
        far = link.back.takers
        far[AdapterAsk](AdapterAsk(key, "adapter_config.json", 0))
        await wait_until(lambda: bool(link.sent))
        assert link.sent == [AdapterPiece(key, "adapter_config.json", 0, b"")]
        for _ in range(4):
            far[AdapterAsk](AdapterAsk(key, "../../../etc/passwd", 0))
        with pytest.raises(PeerLost, match="asks for more than 4 pieces"):
            far[AdapterAsk](AdapterAsk(key, "adapter_config.json", 0))


@pytest.mark.parametrize(
    "listed", [b"", b"{}", b'{"../x": [1, "a"]}', b'{"adapter_config.json": [0, "a"]}', b'{"a": ' + b"[" * 9999]
)
def test_list_that_is_not_of_an_adapter_is_refused(tmp_path: Path, listed: bytes) -> None:
    with pytest.raises(ParallaxError, match="list of files"):
        AdapterStore(tmp_path).begin(make_key(listed), listed)
    assert not list(tmp_path.iterdir())


def test_old_copies_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, node = AdapterStore(tmp_path / "head"), AdapterStore(tmp_path / "node")
    key = head.add(write_adapter(tmp_path / "made", make_matrices(SIZES)))
    node.begin(key, head.read_list(key))
    node.expire()
    assert node.list_missing(key)
    monkeypatch.setattr("parallax_adapters.store.LONGEST_S", -1)
    head.expire()
    node.expire()
    assert head.has(key)
    assert not list((tmp_path / "node").iterdir())


def test_files_stay_until_nobody_holds_them(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "made", make_matrices(SIZES))
    one, two = (AdapterStore(tmp_path / "store") for _ in range(2))  # of two servers with one home
    key = one.add(source)
    holds = [one.hold(key), two.hold(two.add(source))]
    for hold, store in zip(holds, (one, two), strict=True):
        assert store.has(key)
        store.remove(key)
        assert store.has(key), "it removes what it holds itself"
        hold.release()
        store.remove(key)
    assert not list((tmp_path / "store").iterdir())


def test_copy_that_a_server_of_the_machine_uses_is_not_removed(tmp_path: Path) -> None:
    head, node = AdapterStore(tmp_path / "head"), AdapterStore(tmp_path / "node")
    source = write_adapter(tmp_path / "made", make_matrices(SIZES))
    key = head.add(source)
    node.begin(key, head.read_list(key))
    for name in head.list_files(key):
        node.put(key, name, [(head.find(key) / name).read_bytes()])
    hold = node.hold(node.add(source))  # the same adapter, loaded there too
    node.remove_copy(key)
    assert node.has(key)
    hold.release()
    node.remove_copy(key)
    assert not list((tmp_path / "node").iterdir())
