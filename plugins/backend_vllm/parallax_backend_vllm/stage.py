"""Implements the stage contract with layers that vLLM computes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from parallax_backend_vllm.compat_stage import Found, RunRow, StageWorker
from parallax_backend_vllm.transfer import to_device, to_host
from parallax_core.api import Copy, Row, StageBatch
from parallax_sampling_torch.engine_stage import EngineStage
from parallax_sampling_torch.outputs import find_picks, list_outputs
from parallax_sampling_torch.tensors import read_tensor


class VllmStage(EngineStage[StageWorker]):
    """See `EngineStage`. Page p is vLLM's block p + 1, since vLLM keeps block 0 for itself."""

    engine = "vLLM"

    def copy(self, layers: StageWorker, copies: Sequence[Copy]) -> None:
        """See `EngineStage.copy`."""
        if copies:
            layers.copy([(each.src + 1, each.dst + 1) for each in copies])

    def run(self, layers: StageWorker, batch: StageBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `EngineStage.run`."""
        found = self._run(layers, batch)
        if self.info.gives or not list_outputs(batch):
            return found.hidden, None
        picks = find_picks(batch, found.hidden.device)
        states = picks.take(found.hidden)
        logits = _find_logits(layers, found, batch.rows, states).float()
        return picks.add_up(states, found.hidden), logits

    def list_written(self, row: Row) -> list[int]:
        """Return the blocks that a row has written."""
        first = row.start // self.info.pools[0].page_size
        return [page + 1 for page in self.find_pages(row)[first:]]

    def clean(self, layers: StageWorker, written: Sequence[list[int]]) -> None:
        """See `EngineStage.clean`."""
        layers.recover(sorted(set(chain.from_iterable(written))))

    def release(self, layers: StageWorker) -> None:
        """See `EngineStage.release`."""
        layers.close()

    def bring(self, states: torch.Tensor) -> torch.Tensor:
        """See `EngineStage.bring`."""
        return to_host(states)

    def _run(self, worker: StageWorker, batch: StageBatch) -> Found:
        """Run the rows, in parts of as many as vLLM takes."""
        entries = self.account.entries
        rows = [
            RunRow(entries[row.seq].tokens, row.start, [page + 1 for page in self.find_pages(row)])
            for row in batch.rows
        ]
        hidden = to_device(read_tensor(batch.hidden[0]), worker.device) if batch.hidden else None
        found, first = [], 0
        for start in range(0, len(rows), worker.most_rows):
            part = rows[start : start + worker.most_rows]
            count = sum(len(row.tokens) - row.start for row in part)
            found.append(worker.run(part, None if hidden is None else hidden[first : first + count]))
            first += count
        if len(found) == 1:
            return found[0]
        logits = [each.last_logits for each in found if each.last_logits is not None]
        return Found(torch.cat([each.hidden for each in found]), torch.cat(logits) if logits else None)


def _find_logits(worker: StageWorker, found: Found, rows: Sequence[Row], states: torch.Tensor) -> torch.Tensor:
    """Return the logits of each output, whose states are ``states``: vLLM has computed those of last tokens."""
    places = [place for place, row in enumerate(rows) for _ in row.outputs]
    are_last = all(output.offset == len(row.tokens) - 1 for row in rows for output in row.outputs)
    if are_last and found.last_logits is not None:
        return found.last_logits if places == list(range(len(rows))) else found.last_logits[places]
    return worker.compute_logits(states)
