"""Implements the stage contract with layers that another engine computes on PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from parallax_core.api import (
    Account,
    BackendFailed,
    Copy,
    Edit,
    Outcome,
    Row,
    StageBatch,
    StageInfo,
    StageLost,
    StageResult,
)
from parallax_sampling_torch.outputs import list_outputs
from parallax_sampling_torch.results import compute_result
from parallax_sampling_torch.sampler import Sampler
from parallax_sampling_torch.soundness import check_given, check_hidden
from parallax_sampling_torch.tensors import write_tensor

OPEN_AGAIN = "open the stage again"


class OnDevice(Protocol):
    """An object with a device."""

    @property
    def device(self) -> torch.device:
        """The device that computes."""


Layers = TypeVar("Layers", bound=OnDevice)


class EngineStage(ABC, Generic[Layers]):
    """See `parallax_core.api.Stage`. A subclass has the layers of one engine compute rows.

    Core's account has the sequences, their tokens and their pages, all in one pool; the engine computes rows at the
    places that these pages stand for.
    """

    engine: str
    """The name of the engine, for messages."""

    def __init__(self, info: StageInfo, layers: Layers) -> None:
        """Run ``layers``, whose KV cache has the pages of ``info``."""
        self.account = Account(info)
        self.layers: Layers | None = layers
        """The layers, and the KV cache; None: the stage is closed."""
        self._sampler = None if info.gives else Sampler(info.vocab_size, layers.device)
        self._lost = ""

    @property
    def info(self) -> StageInfo:
        """The properties of the stage."""
        return self.account.info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits``; see `parallax_core.api.Stage.edit`.

        Raises:
            StageLost: if a page could not be copied.
        """
        layers = self._get_layers()
        for edit in edits:
            [copies] = self.account.edit(edit)
            try:
                self.copy(layers, copies)
            except BaseException as error:  # an interrupt too may leave pages half written
                self._lose(f"a page could not be copied: {type(error).__name__}: {error}")
                raise StageLost(self._lost, OPEN_AGAIN) from error

    def step(self, batch: StageBatch) -> Outcome:
        """Run ``batch``; see `parallax_core.api.Stage.step`.

        Raises:
            BackendFailed: if the computation fails, or an input or result is not finite; all sequences are as before.
            StageLost: if the engine cannot go on after that.
        """
        layers = self._get_layers()
        check_given(batch)
        restore = self.account.save(batch.rows)
        [copies] = self.account.step(batch)
        if not batch.rows:
            return Outcome(StageResult(free=self.account.free))
        try:
            self.copy(layers, copies)
            with torch.inference_mode():
                return Outcome(self._compute(layers, batch))
        except BaseException as error:  # after an interrupt too, the sequences must be unchanged
            self._take_back(layers, batch, restore)
            if isinstance(error, BackendFailed) or not isinstance(error, Exception):
                raise
            reason = str(error).partition("\n")[0]
            hint = "try again; if it happens again, serve fewer requests at once"
            raise BackendFailed(f"{type(error).__name__}: {reason}", hint) from error

    def close(self) -> None:
        """Release the layers and every sequence. A second call does nothing."""
        layers, self.layers = self.layers, None
        self.account, self._sampler = Account(self.info), None
        if layers is not None:
            self.release(layers)

    @abstractmethod
    def copy(self, layers: Layers, copies: Sequence[Copy]) -> None:
        """Copy parts of pages; there may be none."""

    @abstractmethod
    def run(self, layers: Layers, batch: StageBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the rows of a batch, for which pages were taken.

        Return the hidden states of all tokens, of shape [tokens, width], and None. On the last stage, return those of
        each output, of shape [outputs, width], and their logits, float32 of shape [outputs, vocab size]; without
        outputs, the values do not matter.
        """

    @abstractmethod
    def list_written(self, row: Row) -> Any:  # noqa: ANN401 -- as `clean` takes it
        """Return the places that a row has written; they belong to other sequences soon."""

    @abstractmethod
    def clean(self, layers: Layers, written: Sequence[Any]) -> None:
        """Remove NaN from the places that the rows of a failed step have written."""

    def release(self, layers: Layers) -> None:
        """Release the memory of the layers."""

    def bring(self, states: torch.Tensor) -> torch.Tensor:
        """Return hidden states in memory that other stages read, or from which they can be copied there."""
        return states

    def find_pages(self, row: Row) -> Sequence[int]:
        """Return the pages of a row's sequence."""
        [pool] = self.account.pools
        return pool.pages(row.seq)[1]

    def _get_layers(self) -> Layers:
        if self._lost:
            raise StageLost(self._lost, OPEN_AGAIN)
        if self.layers is None:
            message = "the stage is closed"
            raise BackendFailed(message, OPEN_AGAIN)
        return self.layers

    def _lose(self, reason: str) -> None:
        self._lost = f"the stage is lost: {reason}"
        with suppress(Exception):  # the engine may be broken
            self.close()

    def _take_back(self, layers: Layers, batch: StageBatch, restore: Callable[[], None]) -> None:
        """Restore all sequences to their state before a failed step, and clean the places that it wrote.

        Raises:
            StageLost: if the engine fails at that too.
        """
        written = [self.list_written(row) for row in batch.rows]
        restore()
        try:
            self.clean(layers, written)
        except Exception as error:
            self._lose(f"{self.engine} failed after a failed step: {error}")
            raise StageLost(self._lost, f"{OPEN_AGAIN}, in a new process") from error

    def _compute(self, layers: Layers, batch: StageBatch) -> StageResult:
        """Run the rows of a batch, and draw."""
        states, logits = self.run(layers, batch)
        if self.info.gives:
            check_hidden(states, batch.rows)
            return StageResult(tensors=(write_tensor(self.bring(states)),), free=self.account.free)
        if not list_outputs(batch):
            return StageResult(free=self.account.free)
        assert self._sampler is not None, "a stage that gives nothing draws"
        assert logits is not None, "the last stage has logits"
        result = compute_result(self._sampler, batch, self.account.entries, logits, self.bring(states))
        return replace(result, free=self.account.free)
