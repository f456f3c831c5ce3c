"""Records decode steps once for each size and replays them, so that a device does not wait for launches.

Steps are padded to few sizes. The added rows lie in a spare page that no sequence owns, and are cut from the output;
the added pages are masked.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from parallax_backend_torch.cuda_graph import Graph, prepare_graphs
from parallax_backend_torch.network import Network, Runner
from parallax_backend_torch.step import Step, make_spots
from parallax_backend_torch.step_upload import Extent, StepUpload, open_step_upload
from parallax_backend_torch.store import Store
from parallax_backend_torch.tensors import upload
from parallax_core.api import PagePool, PoolInfo, Row

MOST_ROWS = 256
MOST_SLOTS = 2**17
"""Of all rows together, what is added included. The longer a step takes, the less its launches should count."""
MOST_GRAPHS = 48
"""Kept at a time: each takes some memory."""
STEP = 8
"""Numbers of rows there are graphs for: powers of two up to this one, then its multiples."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class Recording:
    """One size of step."""

    graph: Graph
    words: torch.Tensor
    """The inputs of a recorded step."""
    hidden: torch.Tensor | None
    """And on a stage that is not the first, [rows, width]."""
    found: torch.Tensor
    """The output, [rows, width]."""


class Replays:
    """The recorded steps of a stage.

    Args:
        network: what is recorded: its layers.
        store: what they keep.
        pools: of the stage; none of states.
        make_graph: makes what records.
    """

    def __init__(
        self, network: Network, store: Store, pools: Sequence[PoolInfo], make_graph: Callable[[], Graph]
    ) -> None:
        self.network = network
        self._store, self._pools, self._make_graph = store, pools, make_graph
        self._kept: dict[Extent, Recording] = {}
        self._fault = ""

    def run(self, rows: Sequence[Row], pools: Sequence[PagePool], hidden: torch.Tensor | None) -> torch.Tensor | None:
        """Return the hidden states after the layers, [rows, width]; or None for a step that is to be run otherwise.

        Args:
            rows: of the step.
            pools: after pages were taken for them.
            hidden: [rows, width] of the stage before; None on the first stage.
        """
        if self._fault or len(rows) > MOST_ROWS or any(len(row.tokens) != 1 for row in rows):
            return None
        step_upload = StepUpload(rows, pools)
        extent = round_extent(step_upload.measure()[0], self._pools)
        if count_slots(extent, self._pools) > MOST_SLOTS:
            return None
        words = step_upload.write([extent])
        recording = self._kept.pop(extent, None)
        if recording is None and (recording := self._record(extent, words, hidden)) is None:
            return None
        self._kept[extent] = recording  # last: those that were used least lately come first
        _fill(recording, words, hidden)
        recording.graph.replay()
        return recording.found[: len(rows)].clone()

    def _record(self, extent: Extent, words: array[int], hidden: torch.Tensor | None) -> Recording | None:
        """Return the recording of a size, or None if it fails; then nothing is tried again."""
        device = self._store.device
        given = None if hidden is None else hidden.new_zeros((extent.rows, hidden.shape[1]))
        static, graph = upload(words).to(device, copy=True), self._make_graph()
        while len(self._kept) >= MOST_GRAPHS:
            del self._kept[next(iter(self._kept))]
        try:
            found = graph.record(lambda: self._run_layers(extent, static, given))
        except RuntimeError as error:
            self._fault = str(error)
            self._kept.clear()
            _log.warning("decodes run without CUDA graphs, more slowly: %s", self._fault)
            return None
        _log.debug("recorded a step of %d rows and %s pages each", extent.rows, extent.pages)
        return Recording(graph, static, given, found)

    def _run_layers(self, extent: Extent, words: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
        opened = open_step_upload(words, [extent], self._pools)
        step = Step(opened.tokens, opened.positions, make_spots(self._store, opened.grids))
        return self.network.run_layers(step, hidden)


def make_replays(runner: Runner, store: Store, pools: Sequence[PoolInfo], choice: str) -> Replays | None:
    """Return what records the decodes of a stage, or None where that is not done.

    Args:
        runner: of the stage.
        store: what its layers keep.
        pools: of the stage.
        choice: see `settings.TorchSettings.graphs`.
    """
    if store.device.type != "cuda" or choice == "off":
        return None
    obstacle = runner.obstacle if isinstance(runner, Network) else "the model runs on the code of transformers"
    if obstacle or not isinstance(runner, Network):
        _log.debug("decodes run without CUDA graphs: %s", obstacle)
        return None
    return Replays(runner, store, pools, prepare_graphs(store.device))


def round_extent(extent: Extent, pools: Sequence[PoolInfo]) -> Extent:
    """Return the size a step is brought to."""
    rows = extent.rows
    rounded = -(-rows // STEP) * STEP if rows > STEP else _double(rows)
    pages = [min(_double(count), span_window(info)) for count, info in zip(extent.pages, pools, strict=True)]
    return Extent(rounded, extent.tokens, tuple(pages))


def count_slots(extent: Extent, pools: Sequence[PoolInfo]) -> int:
    """Return the slots that all rows look at, in the pool where these are most."""
    return extent.rows * max(count * info.page_size for count, info in zip(extent.pages, pools, strict=True))


def span_window(info: PoolInfo) -> int:
    """Return on how many pages a token sees others, at most."""
    return (info.window + info.page_size - 2) // info.page_size + 1 if info.window else 2**31


def _double(count: int) -> int:
    """Return the power of two that is not below ``count``."""
    return 1 << (count - 1).bit_length()


def _fill(recording: Recording, words: array[int], hidden: torch.Tensor | None) -> None:
    """Say what is to be done; the hidden states of added rows are those of an earlier step, which is as good."""
    recording.words.copy_(upload(words))
    if recording.hidden is not None and hidden is not None:
        recording.hidden[: len(hidden)] = hidden
