"""The toy of every kind keeps the stage contract: what the kit finds in other stages is not its own mistake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from parallax_core.api import BackendFailed, LayerRange, Stage, StageBatch
from parallax_core.contracts.stage import PoolKind
from parallax_core.testing.stage import StageConformance
from parallax_core.testing.toy import Sizes, Toy, ToyStage


class ToyKit(StageConformance):
    """A toy of some layers, and how much it holds."""

    kinds: tuple[PoolKind, ...] = ("full", "full", "full")
    sizes = Sizes(num_pages=16, state_pages=16)
    stage: type[ToyStage] = ToyStage

    @property
    def num_layers(self) -> int:  # type: ignore[override]
        return len(self.kinds)

    def open_stage(self, layers: LayerRange | None) -> ToyStage:
        return self.stage(Toy(self.kinds), layers, self.sizes)

    @contextmanager
    def plant_failure(self, stage: Stage) -> Iterator[None]:
        assert isinstance(stage, ToyStage)

        def fail(batch: StageBatch) -> None:
            raise BackendFailed(f"step {batch.step} fails on purpose")

        before, stage.before_step = stage.before_step, fail
        yield
        stage.before_step = before

    def compute_logits(self, tokens: Sequence[int]) -> Sequence[float]:
        return Toy(self.kinds).logits(tokens)


class TestFull(ToyKit):
    pass


class TestWindow(ToyKit):
    kinds = ("window", "window")


class TestWindowThatRewinds(ToyKit):
    kinds = ("window", "window", "window")
    sizes = Sizes(num_pages=32, page_size=2, rewind=3)


class TestState(ToyKit):
    kinds = ("state", "state")
    sizes = Sizes(state_pages=8)


class TestLatent(ToyKit):
    kinds = ("latent", "latent")
    sizes = Sizes(num_pages=64, page_size=1)


class TestMixed(ToyKit):
    kinds = ("full", "window", "state", "latent")
    sizes = Sizes(num_pages=16, state_pages=12, rewind=1)


class TestWithoutSharing(ToyKit):
    kinds = ("full", "window")
    sizes = Sizes(num_pages=16, shares=False)


class TestLargePages(ToyKit):
    kinds = ("full", "latent")
    sizes = Sizes(num_pages=12, page_size=256, max_batch_tokens=32, context=1000)
