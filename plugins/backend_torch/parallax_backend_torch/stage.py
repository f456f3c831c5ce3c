"""Layers of a model behind the stage contract."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from parallax_backend_torch.answer import Pending, place_draws
from parallax_backend_torch.draft import send_step
from parallax_backend_torch.network import Found, Runner
from parallax_backend_torch.replay import Replays
from parallax_backend_torch.sampling import Sampler
from parallax_backend_torch.soundness import check_found, check_given
from parallax_backend_torch.step import make_step
from parallax_backend_torch.store import Store
from parallax_backend_torch.tensors import read_tensor, upload
from parallax_backend_torch.ticket import list_tickets
from parallax_backend_torch.workshop import Workshop
from parallax_core.api import Account, BackendFailed, Edit, Output, StageBatch, StageInfo, StageLost


@dataclass(frozen=True, slots=True)
class Held:
    """What a stage is made of; what it lets go when it is closed."""

    runner: Runner
    store: Store
    workshop: Workshop
    sampler: Sampler
    replays: Replays | None = None
    """Of steps of decodes, where these are recorded."""


class TorchStage:
    """See `parallax_core.api.Stage`.

    Args:
        info: what the stage says of itself.
        held: its layers, and the memory of its pools.
    """

    def __init__(self, info: StageInfo, held: Held) -> None:
        self._account = Account(info)
        self._held: Held | None = held
        self._lost = ""

    @property
    def info(self) -> StageInfo:
        """What the stage says of itself."""
        return self._account.info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits``; see `parallax_core.api.Stage.edit`."""
        held = self._get_held()
        for edit in edits:
            copies = self._account.edit(edit)
            with self._guarded():
                held.store.copy(copies)

    def step(self, batch: StageBatch) -> Pending:
        """Run ``batch``; see `parallax_core.api.Stage.step`. If the computation fails, the stage is lost.

        Raises:
            BackendFailed: if it is given hidden states that are not finite; nothing has changed then.
            StageLost: if the computation fails, or what it gives is not finite.
        """
        held = self._get_held()
        check_given(batch)
        copies = self._account.step(batch)
        outputs = _list_outputs(batch)
        if not batch.rows:
            return Pending(Found(), outputs, None, self._account.free)
        with self._guarded(), torch.inference_mode():
            held.store.copy(copies)
            found = self._run(held, batch)
            best = check_found(found)
            return Pending(found, outputs, self._draw(held, batch, found, best), self._account.free)

    def close(self) -> None:
        """Release the model and every sequence. Calling it twice is harmless."""
        self._held = None
        self._account = Account(self.info)

    def _get_held(self) -> Held:
        if self._lost:
            raise StageLost(self._lost, "open the stage again")
        if self._held is None:
            message = "the stage is closed"
            raise BackendFailed(message, "open the stage again")
        return self._held

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let the stage be lost by whatever happens: the account has moved on already."""
        try:
            yield
        except Exception as error:
            self._lost = f"the stage is lost: a step failed: {type(error).__name__}: {error}"
            self.close()
            raise StageLost(self._lost, "open the stage again, with fewer requests at once") from error
        except BaseException:  # an interrupt too leaves pages half written
            self._lost = "the stage is lost: a step was interrupted"
            self.close()
            raise

    def _run(self, held: Held, batch: StageBatch) -> Found:
        device, pools, hidden = held.workshop.device, self._account.pools, None
        if batch.hidden:
            hidden = read_tensor(batch.hidden[0]).to(device, held.workshop.dtype)
        picks = _find_picks(batch, device)
        if held.replays and (found := held.replays.run(batch.rows, pools, hidden)) is not None:
            return held.replays.network.finish(found, picks)
        make = make_step if device.type == "cpu" else send_step
        return held.runner.run(make(batch.rows, pools, held.store), hidden, picks)

    def _draw(self, held: Held, batch: StageBatch, found: Found, best: torch.Tensor | None) -> torch.Tensor | None:
        """Return the token ids drawn, if any are; ``best`` are those of the largest scores."""
        if found.logits is None or best is None:
            return None
        outputs = _list_outputs(batch)
        places = place_draws(outputs)
        if not places:
            return None
        entries = self._account.entries
        tickets = [ticket for row in batch.rows for ticket in list_tickets(row, entries[row.seq])]
        if len(places) == len(outputs) == len(set(places)):
            return held.sampler.sample(found.logits, tickets, best)
        return held.sampler.sample(found.logits[places], tickets, best[places])


def _list_outputs(batch: StageBatch) -> list[Output]:
    """Return what is asked for, in row order."""
    return [output for row in batch.rows for output in row.outputs]


def _find_picks(batch: StageBatch, device: torch.device) -> torch.Tensor | None:
    """Return the tokens after which something is asked for, counted over all rows; None: each of them once."""
    picks, first = array("q"), 0
    for row in batch.rows:
        picks.extend(first + output.offset for output in row.outputs)
        first += len(row.tokens)
    return None if picks == array("q", range(first)) else upload(picks).to(device)
