"""The kit for backends finds stages that serve through leases wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import BackendFailed, LayerRange, LeasedStage, Ref, Row, Stage, StageBatch, StageInfo
from parallax_core.testing.checks.lease import LeaseChecks
from parallax_core.testing.paged import PagedLayers, States
from parallax_core.testing.toy import Sizes, Toy, ToyStage, lease_stages
from tests.conformance.harness import list_tests, run_test
from tests.conformance.test_backend import ToyBackendKit
from tests.conformance.toybackend import SPEC, ToyBackend


class LeasingBackend(ToyBackend):
    """Opens stages that serve through leases; subclasses plant faults."""

    stage: type[ToyStage] = ToyStage

    def open_leased(self, toy: Toy, layers: LayerRange, pages: int) -> Stage:
        return self.change(lease_stages(self.stage, toy, layers, Sizes(num_pages=pages, context=64)))

    def change(self, holder: LeasedStage) -> Stage:
        return holder


def share_class(base: type[LeasedStage]) -> type[LeasingBackend]:
    """Return a backend whose stages that serve through leases are of the class ``base``."""

    def change(self: LeasingBackend, holder: LeasedStage) -> Stage:
        del self
        holder.__class__ = base
        return holder

    return type(base.__name__, (LeasingBackend,), {"change": change})


def lease_class(base: type[ToyStage]) -> type[LeasingBackend]:
    """Return a backend whose leases are of the class ``base``."""
    return type(base.__name__, (LeasingBackend,), {"stage": base})


class MissingProtocol(LeasingBackend):
    """Says that its stages can be leased, and opens ordinary ones."""

    def open_leased(self, toy: Toy, layers: LayerRange, pages: int) -> Stage:
        stage = toy.open(layers, num_pages=pages, context=64)
        stage.restate(capabilities=stage.info.capabilities | {"leases"})
        return stage


class OtherParts(LeasingBackend):
    """Opens the stages of leases itself; subclasses open others."""

    def open_leased(self, toy: Toy, layers: LayerRange, pages: int) -> Stage:
        self.toy, self.layers, self.sizes = toy, layers, Sizes(num_pages=pages, context=64)
        self.opened: dict[LayerRange, ToyStage] = {}
        self.closes: list[Callable[[], None]] = []
        info = lease_stages(self.stage, toy, layers, self.sizes).info
        return LeasedStage(info, self.open_part, lambda: None)

    def open_part(self, layers: LayerRange, memory_share: float) -> ToyStage:
        return self.stage(self.toy, layers, self.sizes.scale(memory_share * len(self.layers) / len(layers)))


class OwnPages(LeasedStage):
    """Reports half of the pages."""

    @property
    def info(self) -> StageInfo:
        info = super().info
        return replace(info, pools=tuple(replace(pool, num_pages=pool.num_pages // 2) for pool in info.pools))


class LeasableLease(ToyStage):
    """Says that it can be leased."""

    @property
    def info(self) -> StageInfo:
        return replace(self._info, capabilities=self._info.capabilities | {"leases"})


class AcceptsEdits(LeasedStage):
    def edit(self, edits: Any) -> None:
        pass


class AcceptsSteps(LeasedStage):
    def step(self, batch: StageBatch) -> Any:
        lease = self.lease(self.info.layers, 1.0)
        found = lease.step(batch)
        lease.close()
        return found


class AllLayers(LeasedStage):
    """Leases all layers, whichever are asked for."""

    def lease(self, layers: LayerRange, memory_share: float) -> Stage:
        super().lease(layers, memory_share).close()
        return super().lease(self.info.layers, memory_share)


class TotalWeights(ToyStage):
    """Reports the weights of a stage for each lease of it."""

    @property
    def info(self) -> StageInfo:
        return replace(self._info, weight_bytes=4096)


class ShiftedLayers(PagedLayers):
    """Counts positions from 1."""

    def run(self, batch: StageBatch) -> States:
        rows = [
            Row(row.seq, row.start, row.tokens, row.outputs, tuple(row.start + 1 + i for i in range(len(row.tokens))))
            for row in batch.rows
        ]
        return super().run(replace(batch, rows=tuple(rows)))


class Shifted(ToyStage):
    layers_type = ShiftedLayers


class OneStage(OtherParts):
    """Has one stage for all leases of the same layers."""

    def open_part(self, layers: LayerRange, memory_share: float) -> ToyStage:
        if layers not in self.opened:
            self.opened[layers] = super().open_part(layers, memory_share)
        return self.opened[layers]


class LastTokens(ToyStage):
    """Remembers the last batch of any lease instead of its own."""

    last: tuple[Row, ...] = ()

    def step(self, batch: StageBatch) -> Any:
        stale, LastTokens.last = LastTokens.last, batch.rows
        if stale and batch.rows and len(stale[0].tokens) == len(batch.rows[0].tokens):
            swapped = replace(batch, rows=tuple(_set_tokens(row, stale[0].tokens) for row in batch.rows))
            return super().step(swapped)
        return super().step(batch)


def _set_tokens(row: Row, tokens: tuple[int, ...]) -> Row:
    return Row(row.seq, row.start, tokens, row.outputs)


class SharedPages(ToyStage):
    """Counts the pages that other leases took as its own."""

    stages: list[ToyStage] = []  # noqa: RUF012 -- shared on purpose

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.stages.append(self)

    @property
    def free(self) -> tuple[int, ...]:
        others = [stage for stage in self.stages if stage is not self and not stage.closed]
        return tuple(
            memory.pool.num_free
            - sum(other.layers.memories[index].pool.info.num_pages for other in others)
            + sum(other.layers.memories[index].pool.num_free for other in others)
            for index, memory in enumerate(self.layers.memories)
        )


class WholeMemory(OtherParts):
    """Gives each lease the whole memory."""

    def open_part(self, layers: LayerRange, memory_share: float) -> ToyStage:
        return super().open_part(layers, 1.0)


class Unlimited(LeasedStage):
    """Lets go of a share at once."""

    def lease(self, layers: LayerRange, memory_share: float) -> Stage:
        lease = super().lease(layers, memory_share)
        self._shares = dict.fromkeys(self._shares, 0.0)
        return lease


class KeepsShares(LeasedStage):
    """Never returns a share."""

    def _forget(self, lease: Any) -> None:
        pass


class ReturnsTwice(LeasedStage):
    """Returns the share of a lease each time that it is closed."""

    def _forget(self, lease: Any) -> None:
        super()._forget(lease)
        if self._shares:
            self._shares.popitem()


class AnyRange(LeasedStage):
    """Clamps a range to the layers that are loaded."""

    def lease(self, layers: LayerRange, memory_share: float) -> Stage:
        held = self.info.layers
        start = min(max(layers.start, held.start), held.stop - 1)
        return super().lease(LayerRange(start, max(start + 1, min(layers.stop, held.stop))), memory_share)


class AnyShare(LeasedStage):
    """Clamps a share."""

    def lease(self, layers: LayerRange, memory_share: float) -> Stage:
        return super().lease(layers, min(max(memory_share, 0.1), 1.0))


class TakesWhatItRefuses(LeasedStage):
    """Takes a share before it looks at the layers."""

    def lease(self, layers: LayerRange, memory_share: float) -> Stage:
        first = super().lease(self.info.layers, min(memory_share, 0.1)) if memory_share > 0 else None
        lease = super().lease(layers, memory_share)
        if first:
            first.close()
        return lease


class KeepsPages(OtherParts):
    """Gives a lease the pages of the first one, with what is in them."""

    def open_part(self, layers: LayerRange, memory_share: float) -> ToyStage:
        stage = super().open_part(layers, memory_share)
        self.opened.setdefault(self.layers, stage)
        stage.layers = self.opened[self.layers].layers
        return stage


class NeverCloses(ToyStage):
    def close(self) -> None:
        pass


class ClosesTogether(OtherParts):
    """Closes all leases with one."""

    def open_part(self, layers: LayerRange, memory_share: float) -> ToyStage:
        stage = super().open_part(layers, memory_share)
        self.closes.append(stage.close)
        stage.close = self.close_all  # type: ignore[method-assign]
        return stage

    def close_all(self) -> None:
        for close in self.closes:
            close()


class LeavesLeases(LeasedStage):
    """Closes without its leases."""

    def close(self) -> None:
        self._shares = {}
        super().close()


class LeasesForEver(LeasedStage):
    """Leases after it was closed."""

    def close(self) -> None:
        opens = self._open_part
        super().close()
        self._open_part = opens


class ClosesOnce(LeasedStage):
    """Cannot be closed twice."""

    def close(self) -> None:
        if self._open_part is None:
            raise BackendFailed("it is closed already")
        super().close()


HOLDERS: list[tuple[type[LeasedStage], str, str]] = [
    (OwnPages, "test_leased_stage_describes_a_lease_of_everything", "pools of the stage is"),
    (AcceptsEdits, "test_leased_stage_has_no_sequences", "did not raise BackendFailed"),
    (AcceptsSteps, "test_leased_stage_has_no_sequences", "did not raise BackendFailed"),
    (AllLayers, "test_lease_describes_its_layers", "layers of a lease of layers 0-1 is"),
    (Unlimited, "test_shares_beyond_the_memory_are_refused", "did not raise ParallaxError"),
    (KeepsShares, "test_shares_beyond_the_memory_are_refused", "ParallaxError: 25.0% of the memory"),
    (KeepsShares, "test_closed_lease_gives_everything_back", "ParallaxError: 100.0% of the memory"),
    (ReturnsTwice, "test_shares_beyond_the_memory_are_refused", "more memory than is free did not raise"),
    (AnyRange, "test_wrong_leases_are_refused", "did not raise ValueError"),
    (AnyShare, "test_wrong_leases_are_refused", "did not raise ValueError"),
    (TakesWhatItRefuses, "test_wrong_leases_are_refused", "ParallaxError: 100.0% of the memory"),
    (LeavesLeases, "test_closed_stage_has_no_leases", "whose stage is closed did not raise"),
    (LeasesForEver, "test_closed_stage_has_no_leases", "a lease of a closed stage did not raise"),
    (ClosesOnce, "test_closed_stage_has_no_leases", "it is closed already"),
]
LEASES: list[tuple[type[ToyStage], str, str]] = [
    (LeasableLease, "test_leased_stage_describes_a_lease_of_everything", "a lease says that it can be leased"),
    (TotalWeights, "test_lease_describes_its_layers", "weight_bytes of a lease"),
    (Shifted, "test_lease_equals_the_stage_of_its_layers", "leases split at () draw"),
    (Shifted, "test_chains_of_leases_equal_the_whole", "not the whole"),
    (LastTokens, "test_leases_share_nothing", "a sequence differs when steps of another lease"),
    (SharedPages, "test_leases_have_pages_of_their_own", "pages are free, not"),
    (NeverCloses, "test_closed_lease_gives_everything_back", "a step of a closed lease did not raise"),
]
FAULTS: list[tuple[type[LeasingBackend], str, str]] = [
    (MissingProtocol, "test_leased_stage_describes_a_lease_of_everything", "no method lease"),
    (OneStage, "test_leases_share_nothing", "KeyError"),
    (WholeMemory, "test_share_is_a_share_of_the_memory", "half of the memory has"),
    (KeepsPages, "test_closed_lease_gives_everything_back", "pages of a lease are free"),
    (ClosesTogether, "test_leases_close_in_any_order", "the stage is closed"),
    *((share_class(base), test, words) for base, test, words in HOLDERS),
    *((lease_class(base), test, words) for base, test, words in LEASES),
]


@pytest.mark.parametrize(("backend", "test", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_fault_is_found(backend: type[LeasingBackend], test: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert words in run_backend(backend, test, monkeypatch)
    assert run_backend(LeasingBackend, test, monkeypatch) == ""


def run_backend(backend: Callable[[], ToyBackend], test: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test of the kit on a backend, and return the failure it found."""
    monkeypatch.setitem(globals(), "Planted", backend)
    monkeypatch.setattr(LastTokens, "last", ())
    SharedPages.stages.clear()
    kit = type("FaultyKit", (ToyBackendKit,), {"spec": replace(SPEC, factory=Ref(f"{__name__}:Planted"))})
    return run_test(kit, test)


def test_every_test_of_leases_finds_some_fault() -> None:
    assert set(list_tests(LeaseChecks)) - {test for _, test, _ in FAULTS} == set()


class Refuses(ToyBackend):
    """Ignores that a stage should serve through leases, as one that was written before there were any."""

    def open_leased(self, toy: Toy, layers: LayerRange, pages: int) -> Stage:
        return toy.open(layers, num_pages=pages, context=64)


@pytest.mark.parametrize("test", list_tests(LeaseChecks))
def test_backend_without_leases_passes(test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_backend(Refuses, test, monkeypatch) == ""
