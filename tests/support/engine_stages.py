"""What the tests of stages on engines share: the properties of small stages, and tests of failed steps."""

from __future__ import annotations

from typing import Any

import pytest

from parallax_core.api import (
    BackendFailed,
    Draw,
    Fork,
    LayerRange,
    Open,
    PoolInfo,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StageInfo,
    StageLost,
    TensorSpec,
)

LAYERS, VOCAB, PAGE, PAGES = 2, 11, 4, 24
PRIME = 1009
SPEC = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))


def make_info(layers: LayerRange | None = None) -> StageInfo:
    """Return the properties of a stage of a model of small integers; None: of the whole model."""
    held = layers or LayerRange(0, LAYERS)
    hop = (TensorSpec(1, "float32"),)
    return StageInfo(
        layers=held,
        num_layers=LAYERS,
        vocab_size=VOCAB,
        context_length=64,
        max_batch_tokens=16,
        pools=(PoolInfo(kind="full", page_size=PAGE, num_pages=PAGES),),
        device="cpu",
        dtype="float32",
        weight_bytes=0,
        weights_version="1",
        capabilities=frozenset({"logprobs", "hidden", "hidden_sums", "masks"}),
        takes=hop if held.start else (),
        gives=() if held.stop == LAYERS else hop,
    )


class FailedSteps:
    """Tests of a stage whose layers fail on purpose; subclass them under a name that begins with ``Test``."""

    engine: str

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Return a stage."""
        raise NotImplementedError

    def get_layers(self, stage: Any) -> Any:
        """Return its layers, with a tensor ``cache``; ``fails`` and ``is_broken`` say what fails."""
        raise NotImplementedError

    def test_places_of_a_failed_step_are_as_before(self) -> None:
        """Its numbers that are none are gone."""
        stage = self.open_stage(None)
        layers = self.get_layers(stage)
        stage.edit([Open(SeqId(1), SPEC)])
        stage.step(StageBatch((Row(SeqId(1), 0, (5, 6)),))).wait()
        before = layers.cache.clone()
        layers.fails = True
        with pytest.raises(BackendFailed, match="OutOfMemoryError: out of memory on purpose"):
            stage.step(StageBatch((Row(SeqId(1), 2, (7, 8, 9), (Draw(1),)),)))
        assert layers.cache.equal(before)
        stage.close()

    def test_stage_that_cannot_clean_the_places_of_a_failed_step_is_lost(self) -> None:
        """And stays lost."""
        stage = self.open_stage(None)
        layers = self.get_layers(stage)
        stage.edit([Open(SeqId(1), SPEC)])
        layers.fails = layers.is_broken = True
        with pytest.raises(StageLost, match=f"{self.engine} failed after a failed step"):
            stage.step(StageBatch((Row(SeqId(1), 0, (5,)),)))
        with pytest.raises(StageLost):
            stage.edit([Open(SeqId(2), SPEC)])
        stage.close()

    def test_stage_that_cannot_copy_a_page_is_lost(self) -> None:
        """The page may be half written."""
        stage = self.open_stage(None)
        stage.edit([Open(SeqId(1), SPEC)])
        stage.step(StageBatch((Row(SeqId(1), 0, (5, 6)),))).wait()
        self.get_layers(stage).is_broken = True
        with pytest.raises(StageLost, match="a page could not be copied"):
            stage.edit([Fork(SeqId(1), SeqId(2), 2)])
        stage.close()
