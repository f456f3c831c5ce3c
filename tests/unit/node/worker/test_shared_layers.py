"""Layers that leases share: who gets a place when, and when they are loaded and closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_core.api import Epoch, LayerRange, Leasing, ParallaxError, Progress, Stage, Unsupported
from parallax_core.base.errors import BackendFailed
from parallax_core.contracts.placement import StageLease
from parallax_core.contracts.progress import silent
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.worker import shared_layers as module
from parallax_core.node.worker.shared_layers import SharedLayers, StageSlot
from parallax_core.testing.node import open_toy, open_toy_layers
from parallax_core.testing.toy import ToyStage
from parallax_core.wire.membership import Assign
from tests.unit.node.cluster import MODEL, TOY, soon, until

T = TypeVar("T")

ALL = LayerRange(0, len(TOY.layers))
OTHERS = LayerRange(0, 2)
OWN = StageAssignment(stage=0, layers=OTHERS, model=MODEL).assign(Epoch(1))


def assign(share: float = 0.5, holds: LayerRange = ALL, layers: LayerRange | None = None) -> Assign:
    """Return an assignment of a lease."""
    lease = StageLease(0, holds, share)
    return StageAssignment(stage=0, layers=layers or holds, model=MODEL, lease=lease).assign(Epoch(1))


class Loader:
    """Opens toys, and notes which, and on which thread."""

    def __init__(self) -> None:
        self.loads: list[Assign] = []
        self.threads: set[int] = set()
        self.faults: list[Exception] = []
        """Raised by the next loads instead."""
        self.layers = SharedLayers(self.open)
        self.stages: list[Stage] = []

    def open(self, assign: Assign, progress: Progress) -> Stage:
        self.loads.append(assign)
        self.threads.add(threading.get_ident())
        if self.faults:
            raise self.faults.pop()
        self.stages.append(open_toy_layers(assign, progress))
        return self.stages[-1]

    def is_loaded(self, number: int) -> bool:
        """Return whether the layers that were loaded by a load are still open."""
        holder = self.stages[number]
        assert isinstance(holder, Leasing)
        try:
            holder.lease(OTHERS, 1e-3)
        except BackendFailed:
            return False
        except ParallaxError:  # too small a share
            return True
        return True

    async def lease(self, share: float = 0.5, holds: LayerRange = ALL, layers: LayerRange | None = None) -> HeldLease:
        """Return a lease that is open."""
        slot = await soon(self.layers.acquire(assign(share, holds, layers)))
        return HeldLease(slot, await soon(slot.thread.call(lambda: slot.open(silent))))


class HeldLease:
    """A lease, and its place."""

    def __init__(self, slot: StageSlot, stage: Stage) -> None:
        self.slot, self.stage = slot, stage

    async def end(self) -> None:
        """Close it and give it back."""
        await soon(self.slot.thread.call(self.stage.close))
        self.slot.give_back()


async def is_waiting(task: asyncio.Task[T]) -> bool:
    """Return whether a task waits, after it has had time not to."""
    await asyncio.sleep(0.02)
    return not task.done()


async def test_layers_are_loaded_once_for_all_leases_and_used_on_one_thread() -> None:
    loader = Loader()
    leases = [await loader.lease(0.25), await loader.lease(0.5, layers=OTHERS), await loader.lease(0.25)]
    assert [lease.stage.info.layers for lease in leases] == [ALL, OTHERS, ALL]
    assert len(loader.loads) == len(loader.threads) == 1
    assert {id(lease.slot.thread) for lease in leases} == {id(leases[0].slot.thread)}
    assert loader.layers.loaded is not None
    assert all(lease.slot.is_shared for lease in leases)


@pytest.mark.parametrize("limit", [1, 7])
async def test_heads_are_told_the_limit_of_the_context(limit: int) -> None:
    info = (await Loader().lease()).stage.info
    assert SharedLayers(open_toy, limit).limit(info) == replace(info, context_length=limit)


@pytest.mark.parametrize("more", [None, 0, 1])
async def test_limit_beyond_the_context_of_a_stage_changes_nothing(more: int | None) -> None:
    info = (await Loader().lease()).stage.info
    assert SharedLayers(open_toy, None if more is None else info.context_length + more).limit(info) is info


async def test_layers_stay_loaded_when_nobody_uses_them() -> None:
    loader = Loader()
    await (await loader.lease(1.0)).end()
    await loader.lease(1.0)
    assert len(loader.loads) == 1


async def test_lease_waits_until_there_are_enough_shares() -> None:
    loader = Loader()
    first, second = await loader.lease(0.5), await loader.lease(0.4)
    waiting = asyncio.create_task(loader.layers.acquire(assign(0.3)))
    assert await is_waiting(waiting)
    await second.end()
    await soon(waiting)
    late = asyncio.create_task(loader.layers.acquire(assign(0.3)))
    assert await is_waiting(late)
    await first.end()
    await soon(late)
    assert len(loader.loads) == 1


async def test_other_layers_are_loaded_once_no_lease_uses_the_old_ones() -> None:
    loader = Loader()
    first = await loader.lease(0.1)
    waiting = asyncio.create_task(loader.lease(0.1, OTHERS))
    assert await is_waiting(waiting), "though there are shares"
    await first.end()
    second = await soon(waiting)
    assert [(each.holds_start, each.holds_stop) for each in loader.loads] == [(0, 3), (0, 2)]
    assert not loader.is_loaded(0)
    assert second.stage.info.layers == OTHERS


async def test_leases_that_are_not_given_back_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RELEASE_S", 0.05)
    loader = Loader()
    await loader.lease(0.75)
    for wanted in (assign(0.5), assign(0.1, OTHERS), OWN):
        with pytest.raises(BackendFailed, match=r"other stages of this node were not released within 0\.05 s") as error:
            await soon(loader.layers.acquire(wanted))
        assert "they end when their pipelines move" in error.value.hint
    await loader.lease(0.25)


async def test_stage_of_its_own_waits_for_leases_and_unloads_their_layers() -> None:
    loader = Loader()
    first = await loader.lease(0.5)
    waiting = asyncio.create_task(loader.layers.acquire(OWN))
    assert await is_waiting(waiting)
    await first.end()
    slot = await soon(waiting)
    assert not slot.is_shared
    assert loader.layers.loaded is None
    assert not loader.is_loaded(0)
    stage = await soon(slot.thread.call(lambda: slot.open(silent)))
    assert isinstance(stage, ToyStage)


async def test_lease_waits_for_a_stage_of_its_own_which_has_taken_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader()
    slot = await soon(loader.layers.acquire(OWN))
    waiting = asyncio.create_task(loader.layers.acquire(assign()))
    assert await is_waiting(waiting)
    slot.give_back()
    await soon(waiting)
    other = Loader()
    await soon(other.layers.acquire(OWN))
    monkeypatch.setattr(module, "RELEASE_S", 0.05)
    with pytest.raises(BackendFailed, match="were not released"):
        await soon(other.layers.acquire(assign()))


def opening(slot: StageSlot) -> Callable[[], Stage]:
    """Return a function that opens the stage of a place."""
    return lambda: slot.open(silent)


async def test_two_that_want_a_place_at_once_get_what_is_there() -> None:
    loader = Loader()
    slots = await soon(asyncio.gather(*(loader.layers.acquire(assign(0.5)) for _ in range(2))))
    opened = await soon(asyncio.gather(*(slot.thread.call(opening(slot)) for slot in slots)))
    assert len(opened) == 2
    assert len(loader.loads) == 1


async def test_two_that_want_other_layers_at_once_get_them_one_after_the_other() -> None:
    loader = Loader()
    first, second = (asyncio.create_task(loader.layers.acquire(assign(0.5, holds))) for holds in (ALL, OTHERS))
    slot = await soon(first)
    assert await is_waiting(second)
    await soon(slot.thread.call(opening(slot)))
    slot.give_back()
    slot = await soon(second)
    await soon(slot.thread.call(opening(slot)))
    assert [each.holds_stop for each in loader.loads] == [3, 2]


def hold(lease: HeldLease, gate: threading.Event) -> None:
    """Have the thread of a lease be busy until the gate is open."""
    lease.slot.thread.call(lambda: gate.wait(20))


async def test_other_layers_are_not_loaded_while_the_old_ones_are_being_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    loader, gate = Loader(), threading.Event()
    first = await loader.lease(0.5)
    await first.end()
    hold(first, gate)
    await soon(loader.layers.trim())
    assert loader.layers.loaded is None, "it does not wait long"
    waiting = asyncio.create_task(loader.lease(0.5, OTHERS))
    assert await is_waiting(waiting)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    waiting = asyncio.create_task(loader.lease(0.5, OTHERS))
    assert await is_waiting(waiting)
    assert loader.is_loaded(0)
    gate.set()
    second = await soon(waiting)
    assert second.stage.info.layers == OTHERS
    assert [loader.is_loaded(number) for number in range(2)] == [False, True]


async def test_layers_that_are_never_closed_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RELEASE_S", 0.05)
    loader, gate = Loader(), threading.Event()
    first = await loader.lease(0.5)
    await first.end()
    hold(first, gate)
    for wanted in (assign(0.5, OTHERS), OWN):
        with pytest.raises(BackendFailed, match=r"the layers that this node had were not closed within 0\.05 s"):
            await soon(loader.layers.acquire(wanted))
    gate.set()
    assert (await loader.lease(0.5, OTHERS)).stage.info.layers == OTHERS


@pytest.mark.parametrize("closing", ["trim", "close_unused"])
async def test_layers_that_nobody_uses_are_closed_when_that_is_wanted(closing: str) -> None:
    loader = Loader()
    lease = await loader.lease(0.5)
    await soon(getattr(loader.layers, closing)())
    assert loader.is_loaded(0), "a lease uses them"
    await lease.end()
    for _ in range(2):
        await soon(getattr(loader.layers, closing)())
    assert not loader.is_loaded(0)
    assert loader.layers.loaded is None
    await loader.lease(0.5)
    assert len(loader.loads) == 2


async def test_layers_are_trimmed_once_their_last_lease_is_given_back() -> None:
    loader = Loader()
    first, second = await loader.lease(0.5), await loader.lease(0.5)
    await soon(loader.layers.trim())
    await first.end()
    assert loader.is_loaded(0)
    await second.end()
    await until(lambda: loader.layers.loaded is None)
    assert not loader.is_loaded(0)


async def test_layers_that_are_leased_again_are_not_trimmed() -> None:
    loader = Loader()
    first, second = await loader.lease(0.5), await loader.lease(0.5)
    await soon(loader.layers.trim())
    await first.end()
    third = await loader.lease(0.5)
    await second.end()
    await third.end()
    await asyncio.sleep(0.02)
    assert loader.is_loaded(0)


async def test_load_that_failed_gives_its_share_back_and_the_next_loads_again() -> None:
    loader = Loader()
    loader.faults.append(ParallaxError("there is too little memory"))
    slot = await soon(loader.layers.acquire(assign(1.0)))
    with pytest.raises(ParallaxError, match="too little memory"):
        await soon(slot.thread.call(opening(slot)))
    assert loader.layers.loaded is None, "nothing is loaded"
    slot.give_back()
    await loader.lease(1.0)
    assert len(loader.loads) == 2
    assert loader.layers.loaded is not None


async def test_backend_without_leases_is_named_and_what_it_has_loaded_is_closed() -> None:
    stages: list[ToyStage] = []

    def open_plain(assign: Assign, progress: Progress) -> Stage:
        stages.append(open_toy(assign, progress))
        return stages[-1]

    layers = SharedLayers(open_plain)
    slot = await soon(layers.acquire(assign(1.0)))
    with pytest.raises(Unsupported, match="the backend of this node has no leases"):
        await soon(slot.thread.call(opening(slot)))
    slot.give_back()
    assert [stage.closed for stage in stages] == [True]


async def test_caller_that_gives_up_waiting_gets_no_share() -> None:
    loader = Loader()
    first = await loader.lease(0.75)
    waiting = asyncio.create_task(loader.layers.acquire(assign(0.75)))
    assert await is_waiting(waiting)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await first.end()
    await loader.lease(1.0)


class Walk:
    """Sessions that want places, get them and give them back, in any order."""

    def __init__(self) -> None:
        self.layers = SharedLayers(open_toy_layers)
        self.held: list[tuple[Assign, StageSlot]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def act(self, action: str, wanted: Assign) -> None:
        if action == "acquire":
            self.tasks.append(asyncio.create_task(self._acquire(wanted)))
        elif action == "trim":
            self.tasks.append(asyncio.create_task(self.layers.trim()))
        elif action == "cancel" and self.tasks:
            self.tasks.pop().cancel()
        elif action == "end" and self.held:
            self.held.pop(0)[1].give_back()

    async def _acquire(self, wanted: Assign) -> None:
        self.held.append((wanted, await self.layers.acquire(wanted)))

    def check(self) -> None:
        leased = [each for each, _ in self.held if each.memory_share]
        assert sum(each.memory_share for each in leased) <= 1 + 1e-8
        assert len({(each.holds_start, each.holds_stop) for each in leased}) <= 1
        assert not leased or len(leased) == len(self.held), "a stage of its own has all memory"

    async def finish(self) -> None:
        """Give back what is held, until everybody has had a place."""
        while self.held or not all(task.done() for task in self.tasks):
            self.act("end", OWN)
            await asyncio.sleep(0)
        await self.layers.close_unused()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["acquire", "acquire", "end", "trim", "cancel"]),
            st.just(OWN) | st.builds(assign, st.floats(0.05, 1.0), st.sampled_from([ALL, OTHERS])),
        ),
        max_size=15,
    )
)
def test_shares_never_exceed_the_memory_and_layers_are_never_mixed(steps: list[tuple[str, Assign]]) -> None:
    async def run() -> None:
        walk = Walk()
        for action, wanted in steps:
            walk.act(action, wanted)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            walk.check()
        await soon(walk.finish())

    asyncio.run(run())
