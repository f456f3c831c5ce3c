"""The stage keeps the contract over the link to its child, with layers that run in SGLang's way: rows at slots."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast
from weakref import WeakKeyDictionary

import pytest
import torch

from parallax_backend_sglang import stage_frames
from parallax_backend_sglang.compat_stage import Found, RowSlots
from parallax_backend_sglang.remote_stage import RemoteStage
from parallax_backend_sglang.stage import SglangStage
from parallax_backend_sglang.stage_child import answer, fit_pages
from parallax_backend_sglang.stage_errors import pack_error, unpack_error
from parallax_backend_sglang.stage_frames import Loaded, LoadStage, Progressed, Raised, send
from parallax_core.api import (
    BackendFailed,
    Draw,
    LayerRange,
    Open,
    OutOfPages,
    ParallaxError,
    Row,
    SeqId,
    StageBatch,
    StageLost,
    Unit,
    Unsupported,
    silent,
)
from parallax_core.testing.stage import StageConformance
from parallax_sampling_torch.outputs import Picks
from tests.support.engine_stages import LAYERS, PAGE, PAGES, PRIME, SPEC, VOCAB, FailedSteps, make_info


class Layers:
    """A `LayerRunner` of small integers with a cache of slots: each token sees all before it, by their positions."""

    device = torch.device("cpu")
    most_rows = 2
    """Fewer than a batch of the kit has, so that batches are computed in parts."""

    def __init__(self, layers: LayerRange) -> None:
        self.layers = layers
        self.cache = torch.zeros(len(layers), PAGES * PAGE + 1)
        self.fails = self.is_broken = False

    def run(self, tokens: torch.Tensor, rows: Sequence[RowSlots], hidden: torch.Tensor | None, picks: Picks) -> Found:
        """Compute rows one after the other."""
        given = tokens[:, None].float() if hidden is None else hidden
        parts = given.split([row.count for row in rows])
        states = torch.cat([self._run_row(row, part) for row, part in zip(rows, parts, strict=True)])
        if self.fails:
            for row in rows:
                self.cache[:, row.slots[row.start :]] = torch.nan
            raise torch.OutOfMemoryError("out of memory on purpose")
        if self.layers.stop < LAYERS:
            return Found(states, None)
        taken = picks.take(states)
        return Found(picks.add_up(taken, states), -torch.remainder(taken + 97.0 * torch.arange(VOCAB), PRIME))

    def copy(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Copy slots."""
        self._check()
        self.cache[:, dst] = self.cache[:, src]

    def clear(self, slots: torch.Tensor) -> None:
        """Clear slots."""
        self._check()
        self.cache[:, slots] = 0

    def _check(self) -> None:
        if self.is_broken:
            raise RuntimeError("SGLang is broken on purpose")

    def _run_row(self, row: RowSlots, states: torch.Tensor) -> torch.Tensor:
        assert 0 not in row.slots, "slot 0 is SGLang's own"
        length = len(row.slots)
        for layer in range(len(self.layers)):
            self.cache[layer, row.slots[row.start :]] = states[:, 0]
            weights = torch.arange(3, 3 + length).expand(length, -1).tril()[row.start :].float()
            states = torch.remainder(weights @ self.cache[layer, row.slots], PRIME)[:, None]
        return states


class Link:
    """Gives the messages of a link, as `parallax_backend_sglang.inbox.Inbox` does."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link

    def wait(self) -> Any:
        """Wait for a message."""
        return stage_frames.wait(self.link)


class Child:
    """The child process of a stage, as a thread; see `parallax_backend_sglang.process.StageProcess`."""

    def __init__(self) -> None:
        self.link, self._theirs = socket.socketpair()
        self.layers: Layers | None = None
        self.stage: SglangStage | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def explain(self) -> str:
        """Return a reason."""
        return "SGLang failed: on purpose"

    def end(self) -> None:
        """End the thread."""
        self.link.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._theirs.close()

    def _run(self) -> None:
        inbox = cast("Any", Link(self._theirs))
        load = inbox.wait()
        if not isinstance(load, LoadStage) or load.architecture == "Dies":
            return self._theirs.shutdown(socket.SHUT_RDWR)
        send(self._theirs, Progressed("loading", 1, 2, "items"))
        if load.architecture == "Refused":
            return send(self._theirs, Raised("Unsupported", "no such family", "try another"))
        self.layers = Layers(load.info.layers)
        self.stage = SglangStage(load.info, cast("Any", self.layers))
        send(self._theirs, Loaded(load.info))
        with suppress(BrokenPipeError):  # the stage has ended its child
            while (message := inbox.wait()) is not None:
                send(self._theirs, answer(self.stage, inbox, message))
        return None


CHILDREN = WeakKeyDictionary[RemoteStage, Child]()
"""The child processes of open stages."""


def make_load(layers: LayerRange | None = None, architecture: str = "Fake") -> LoadStage:
    """Return the message for a stage of `Layers`."""
    return LoadStage(architecture, "model", {}, make_info(layers))


def open_stage(layers: LayerRange | None = None) -> RemoteStage:
    """Return a stage of `Layers`."""
    child = Child()
    stage = RemoteStage(cast("Any", lambda: child), make_load(layers), silent)
    CHILDREN[stage] = child
    return stage


def get_layers(stage: RemoteStage) -> Layers:
    layers = CHILDREN[stage].layers
    assert layers is not None
    return layers


@pytest.fixture
def stage() -> Iterator[RemoteStage]:
    found = open_stage()
    yield found
    found.close()


class TestSglangStage(StageConformance, FailedSteps):
    engine = "SGLang"
    num_layers = LAYERS
    longest = 11
    exact = False

    def open_stage(self, layers: LayerRange | None) -> RemoteStage:
        return open_stage(layers)

    def get_layers(self, stage: Any) -> Layers:
        return get_layers(stage)

    @contextmanager
    def plant_failure(self, stage: object) -> Iterator[None]:
        assert isinstance(stage, RemoteStage)
        get_layers(stage).fails = True
        yield
        get_layers(stage).fails = False


def test_stage_whose_child_process_ends_is_lost_for_good(stage: RemoteStage) -> None:
    CHILDREN[stage].end()
    for _ in range(2):
        with pytest.raises(StageLost, match="SGLang failed: on purpose") as lost:
            stage.edit([Open(SeqId(1), SPEC)])
        assert lost.value.hint == "open the stage again"


def test_child_process_that_ends_while_loading_is_explained() -> None:
    with pytest.raises(BackendFailed, match="SGLang failed: on purpose") as failed:
        RemoteStage(cast("Any", Child), make_load(architecture="Dies"), silent)
    assert "sglang:" in failed.value.hint


def test_error_of_loading_is_raised_with_its_hint_after_the_progress() -> None:
    reports = []

    def note(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        reports.append((task, done, total, unit))

    with pytest.raises(Unsupported, match="no such family") as refused:
        RemoteStage(cast("Any", Child), make_load(architecture="Refused"), note)
    assert refused.value.hint == "try another"
    assert reports == [("loading", 1, 2, "items")]


class InterruptingMasks:
    def wait(self) -> Any:
        raise KeyboardInterrupt


def test_stage_whose_call_was_interrupted_is_lost(stage: RemoteStage) -> None:
    stage.edit([Open(SeqId(1), SPEC)])
    with pytest.raises(KeyboardInterrupt):
        stage.step(StageBatch((Row(SeqId(1), 0, (5,), (Draw(0),)),), masks=InterruptingMasks()))
    with pytest.raises(StageLost, match="interrupted"):
        stage.edit([])


@pytest.mark.parametrize(
    "error",
    [
        OutOfPages(3, 2),
        KeyError("sequence 4 is not open"),
        ValueError("too long"),
        Unsupported("no adapters", "leave it out"),
        StageLost("gone", "open it again"),
        ParallaxError("damaged", "fetch it again"),
        BackendFailed("not finite", "float32", (SeqId(4), SeqId(7))),
    ],
)
def test_error_is_the_same_beyond_the_link(error: Exception) -> None:
    found = unpack_error(pack_error(error))
    assert (type(found), str(found), found.args) == (type(error), str(error), error.args)
    names = ("hint", "sequences", "needed", "free")
    assert [getattr(found, name, None) for name in names] == [getattr(error, name, None) for name in names]


def test_unknown_error_becomes_a_failure_of_the_backend() -> None:
    found = unpack_error(pack_error(RuntimeError("odd")))
    assert isinstance(found, BackendFailed)
    assert found.message == "RuntimeError: odd"


def test_pages_fit_into_the_slots_that_sglang_has_made() -> None:
    info = make_load().info
    assert fit_pages(info, 1000).pools == info.pools
    assert fit_pages(info, 3 * PAGE + 1).pools[0].num_pages == 3
    with pytest.raises(ParallaxError, match="memory for 2 tokens") as little:
        fit_pages(info, 2)
    assert "memory_fraction" in little.value.hint
