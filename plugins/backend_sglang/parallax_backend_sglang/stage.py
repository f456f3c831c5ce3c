"""Implements the stage contract with layers that SGLang runs, in the child process."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from parallax_backend_sglang.compat_stage import Found, LayerRunner, RowSlots
from parallax_core.api import Copy, Row, StageBatch, StageInfo
from parallax_sampling_torch.engine_stage import EngineStage
from parallax_sampling_torch.outputs import find_picks
from parallax_sampling_torch.tensors import read_tensor


class SglangStage(EngineStage[LayerRunner]):
    """See `EngineStage`.

    Page p is the slots from p * page size + 1 on, since SGLang keeps slot 0 for itself.
    """

    engine = "SGLang"

    def __init__(self, info: StageInfo, layers: LayerRunner) -> None:
        """Run ``layers``; the pages of ``info`` fit into their slots."""
        super().__init__(info, layers)
        self._page = torch.arange(1, info.pools[0].page_size + 1)

    def copy(self, layers: LayerRunner, copies: Sequence[Copy]) -> None:
        """See `EngineStage.copy`."""
        size = self.info.pools[0].page_size
        for each in copies:
            page = self._page[: each.num_slots]
            layers.copy(page + each.src * size, page + each.dst * size)

    def run(self, layers: LayerRunner, batch: StageBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `EngineStage.run`; in parts of as many rows as SGLang takes."""
        hidden = read_tensor(batch.hidden[0]).to(layers.device, copy=True) if batch.hidden else None
        found, first = list[Found](), 0
        for start in range(0, len(batch.rows), layers.most_rows):
            part = StageBatch(batch.rows[start : start + layers.most_rows])
            tokens = torch.tensor([token for row in part.rows for token in row.tokens])
            given = None if hidden is None else hidden[first : first + len(tokens)]
            rows = [self._find_slots(row) for row in part.rows]
            found.append(layers.run(tokens, rows, given, find_picks(part, layers.device)))
            first += len(tokens)
        if len(found) == 1:
            return found[0].hidden, found[0].logits
        logits = [each.logits for each in found if each.logits is not None]
        return torch.cat([each.hidden for each in found]), torch.cat(logits) if logits else None

    def list_written(self, row: Row) -> torch.Tensor:
        """Return the slots that a row has written."""
        return self._find_slots(row).slots[row.start :]

    def clean(self, layers: LayerRunner, written: Sequence[torch.Tensor]) -> None:
        """See `EngineStage.clean`."""
        layers.clear(torch.cat(list(written)))

    def _find_slots(self, row: Row) -> RowSlots:
        """Return the slots of a row, for which pages were taken."""
        slots = torch.tensor(self.find_pages(row))[:, None] * self.info.pools[0].page_size + self._page
        return RowSlots(row.start, slots.flatten()[: row.start + len(row.tokens)])
