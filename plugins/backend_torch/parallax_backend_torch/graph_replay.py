"""Records decode steps once per size and replays them, to save the time of kernel launches.

Steps are padded to a few sizes. Padding rows use a spare page that no sequence owns, and are cut from the output;
padding pages are masked.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from parallax_backend_torch.cuda_graph import Graph, prepare_graphs
from parallax_backend_torch.network import Network, Runner
from parallax_backend_torch.step import HIDDEN, Carried, Step, make_caches
from parallax_backend_torch.step_upload import Extent, StepUpload, open_step_upload
from parallax_backend_torch.store import Store
from parallax_core.api import PagePool, PoolInfo, Row
from parallax_sampling_torch.tensors import upload

MOST_ROWS = 256
MOST_SLOTS = 2**17
"""The most slots that all rows of a recorded step read, if keys are padded; in longer steps, launches matter less."""
MOST_GRAPHS = 48
"""The most graphs kept at a time: each takes some memory."""
STEP = 8
"""Graphs are made for numbers of rows that are powers of two up to this one, or multiples of it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class Recording:
    """A recorded step of one size."""

    graph: Graph
    words: torch.Tensor
    """The inputs of a recorded step."""
    given: Carried | None
    """The input planes, [rows, ...]; None on the first stage."""
    found: Carried
    """The output, [rows, ...]."""


class Replays:
    """The recorded steps of a stage.

    Args:
        network: the layers to record.
        store: the memory of their pools.
        pools: the pools of the stage; none of them has states.
        make_graph: makes an empty graph.
    """

    def __init__(
        self, network: Network, store: Store, pools: Sequence[PoolInfo], make_graph: Callable[[], Graph]
    ) -> None:
        self.network = network
        self._store, self._pools, self._make_graph = store, pools, make_graph
        self._kept: dict[Extent, Recording] = {}
        self._fault = ""
        self._is_padded = True
        """Whether recorded steps read padded keys; supposed until the first is recorded."""

    def run(self, rows: Sequence[Row], pools: Sequence[PagePool], given: Carried | None) -> Carried | None:
        """Return the planes after the layers, [rows, ...]; None for a step that is not replayed.

        Args:
            rows: the rows of the step.
            pools: the pools, after pages were taken for the rows.
            given: the planes that the previous stage gave, [rows, ...]; None on the first stage.
        """
        if self._fault or len(rows) > MOST_ROWS or any(len(row.tokens) != 1 for row in rows):
            return None
        step_upload = StepUpload(rows, pools)
        extent = round_extent(step_upload.measure()[0], self._pools)
        if self._is_padded and count_slots(extent, self._pools) > MOST_SLOTS:
            return None
        words = step_upload.write([extent])
        recording = self._kept.pop(extent, None)
        if recording is None and (recording := self._record(extent, words, given)) is None:
            return None
        self._kept[extent] = recording  # at the end: the least recently used comes first
        _fill(recording, words, given)
        recording.graph.replay()
        return _change(recording.found, lambda plane: plane[: len(rows)].clone())

    def _record(self, extent: Extent, words: array[int], given: Carried | None) -> Recording | None:
        """Return the recording of a size, or None if it fails; after a failure, no size is recorded."""
        device = self._store.device
        kept = _change(given, lambda plane: plane.new_zeros((extent.rows, *plane.shape[1:]))) if given else None
        static, graph = upload(words).to(device, copy=True), self._make_graph()
        while len(self._kept) >= MOST_GRAPHS:
            del self._kept[next(iter(self._kept))]
        try:
            found = graph.record(lambda: self._run_layers(extent, static, kept))
        except RuntimeError as error:
            self._fault = str(error)
            self._kept.clear()
            _log.warning("decodes run without CUDA graphs, more slowly: %s", self._fault)
            return None
        _log.debug("recorded a step of %d rows and %s pages each", extent.rows, extent.pages)
        return Recording(graph, static, kept, found)

    def _run_layers(self, extent: Extent, words: torch.Tensor, given: Carried | None) -> Carried:
        opened = open_step_upload(words, [extent], self._pools)
        step = Step(opened.tokens, opened.positions, make_caches(self._store, opened.grids))
        found = self.network.run_layers(step, given)
        self._is_padded = any(grid.is_padded for grid in opened.grids)
        return found


def make_replays(runner: Runner, store: Store, pools: Sequence[PoolInfo], choice: str) -> Replays | None:
    """Return the recordings of a stage's decodes, still empty, or None if they cannot be recorded.

    Args:
        runner: the runner of the stage.
        store: the memory of its pools.
        pools: the pools of the stage.
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
    """Return the size that a step is padded to."""
    rows = extent.rows
    rounded = -(-rows // STEP) * STEP if rows > STEP else _double(rows)
    pages = [min(_double(count), span_window(info)) for count, info in zip(extent.pages, pools, strict=True)]
    return Extent(rounded, extent.tokens, tuple(pages))


def count_slots(extent: Extent, pools: Sequence[PoolInfo]) -> int:
    """Return the number of slots that all rows read, in the pool with the most."""
    return extent.rows * max(count * info.page_size for count, info in zip(extent.pages, pools, strict=True))


def span_window(info: PoolInfo) -> int:
    """Return the most pages with tokens that a token sees."""
    return (info.window + info.page_size - 2) // info.page_size + 1 if info.window else 2**31


def _double(count: int) -> int:
    """Return the smallest power of two that is not below ``count``."""
    return 1 << (count - 1).bit_length()


def _change(carried: Carried, change: Callable[[torch.Tensor], torch.Tensor]) -> Carried:
    return Carried(change(carried.hidden), {name: change(plane) for name, plane in carried.others.items()})


def _fill(recording: Recording, words: array[int], given: Carried | None) -> None:
    """Write the inputs of a step; padding rows keep the planes of an earlier step, which are not used."""
    recording.words.copy_(upload(words), non_blocking=True)  # CUDA takes a copy of memory that is not pinned
    if recording.given is not None and given is not None:
        names = (HIDDEN, *given.others)
        for kept, plane in zip(recording.given.pick(names), given.pick(names), strict=True):
            kept[: len(plane)] = plane
