"""Builds a stage from a model of single rows, without sequences, pages, batches or draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Protocol

from parallax_core.base.errors import BackendFailed
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Answer, Draw, Edit, Row, Score, StageBatch, StageInfo, StageResult
from parallax_core.contracts.tensor import ITEM_BYTES, Tensor
from parallax_core.pages.account import Account, Outcome
from parallax_core.pages.pool import Copy
from parallax_core.sampling.answer import answer_output, make_draft
from parallax_core.sampling.masks import mask_logits


class RowModel(Protocol):
    """The arithmetic of some layers. Keys and values are stored in slots, numbered from 0 across all pages."""

    def run(self, row: Row, slots: Sequence[int], before: Tensor | None) -> Tensor:
        """Run one row through the layers and write the keys and values of its tokens into their slots.

        Args:
            row: consecutive tokens of one sequence.
            slots: the slots of all tokens of the sequence, in order; those of the row begin at index ``row.start``.
            before: the hidden states before the layers, of shape [tokens, width]; None if the stage starts with layer
                0 and embeds the tokens.

        Returns:
            The hidden states after the layers, of the dtype and width of `StageInfo.gives`.
        """

    def score(self, states: Tensor, offset: int) -> Sequence[float]:
        """Return the raw logits after the token at ``offset`` of a row, from the row's result of `run`."""

    def copy(self, src: int, dst: int, num: int) -> None:
        """Copy the keys and values of ``num`` slots from slot ``src`` on to slot ``dst`` on, in all layers."""


class RowStage:
    """A stage of a `RowModel`, which runs one row after the other: simple, exact and slow; see `Stage`.

    The reference sampler draws, in Python. All layers of the model must keep every token: the stage has one pool, of
    kind ``full``. Its only possible capabilities are ``logprobs`` and ``masks``.
    """

    def __init__(self, info: StageInfo, model: RowModel) -> None:
        if [pool.kind for pool in info.pools] != ["full"] or info.capabilities - {"logprobs", "masks"}:
            message = f"a RowStage needs one full pool and no capability other than logprobs and masks, not {info}"
            raise ValueError(message)
        self._account = Account(info)
        self._model: RowModel | None = model
        self._page_size = info.pools[0].page_size

    @property
    def info(self) -> StageInfo:
        """The properties of the stage."""
        return self._account.info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits``; see `Stage.edit`."""
        model = self._get_model()
        for edit in edits:
            self._copy_slots(model, self._account.edit(edit))

    def step(self, batch: StageBatch) -> Outcome:
        """Run ``batch``; see `Stage.step`. If the computation fails, the stage is closed."""
        model = self._get_model()
        copies = self._account.step(batch)
        try:
            self._copy_slots(model, copies)
            states = [
                model.run(row, self._list_slots(row.seq), before)
                for row, before in zip(batch.rows, cut_hidden(batch), strict=True)
            ]
            answers = () if self.info.gives else tuple(self._answer_rows(batch, states))
        except Exception as error:
            self.close()
            message = f"a step failed: {type(error).__name__}: {error}"
            raise BackendFailed(message, "open the stage again") from error
        tensors = (join_states(states, self.info),) if self.info.gives else ()
        return Outcome(StageResult(answers, tensors, self._account.free))

    def close(self) -> None:
        """Release all sequences and the model. A second call does nothing."""
        self._model = None
        self._account = Account(self.info)

    def _get_model(self) -> RowModel:
        if self._model is None:
            message = "the stage is closed"
            raise BackendFailed(message, "open it again")
        return self._model

    def _copy_slots(self, model: RowModel, copies: Sequence[Sequence[Copy]]) -> None:
        for copy in chain(*copies):
            model.copy(copy.src * self._page_size, copy.dst * self._page_size, copy.num_slots)

    def _list_slots(self, seq: SeqId) -> list[int]:
        [pool] = self._account.pools
        _, pages = pool.pages(seq)
        slots = (page * self._page_size + slot for page in pages for slot in range(self._page_size))
        return [slot for slot, _ in zip(slots, range(pool.length(seq)), strict=False)]

    def _answer_rows(self, batch: StageBatch, states: Sequence[Tensor]) -> Iterator[Answer]:
        model, masks = self._get_model(), batch.masks.wait() if batch.masks is not None else {}
        numbers = count()
        for row, given in zip(batch.rows, states, strict=True):
            entry = self._account.entries[row.seq]
            for output in row.outputs:
                assert isinstance(output, Draw | Score), "the account refuses outputs that need a capability"
                draft = make_draft(entry.spec, entry.tokens[: row.start + output.offset + 1], entry.choice)
                logits = mask_logits(model.score(given, output.offset), masks.get(next(numbers)))
                yield answer_output(output, logits, draft)


def cut_hidden(batch: StageBatch) -> list[Tensor | None]:
    """Return the hidden states of each row of a batch; None for each row of a batch without."""
    if not batch.hidden:
        return [None] * len(batch.rows)
    [tensor] = batch.hidden
    size = ITEM_BYTES[tensor.dtype] * math.prod(tensor.shape[1:])
    data, parts = memoryview(tensor.data), list[Tensor | None]()
    for row in batch.rows:
        num = len(row.tokens)
        parts.append(replace(tensor, shape=(num, *tensor.shape[1:]), data=data[: num * size]))
        data = data[num * size :]
    return parts


def join_states(states: Sequence[Tensor], info: StageInfo) -> Tensor:
    """Return the hidden states of all rows as one tensor, the output of the stage."""
    [spec] = info.gives
    num = sum(tensor.shape[0] for tensor in states)
    return Tensor(spec.dtype, (num, spec.width), b"".join(bytes(tensor.data) for tensor in states))
