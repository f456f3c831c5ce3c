"""Records work on a CUDA device as a graph, and replays it with one launch."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Protocol

import torch

Work = Callable[[], torch.Tensor]

_ALONE = Lock()
"""PyTorch records one graph of a process at a time."""


class Graph(Protocol):
    """Work that was recorded once, to be done again with other numbers in the same memory."""

    def record(self, work: Work) -> torch.Tensor:
        """Do ``work`` once, record it, and return where each `replay` leaves its result.

        Args:
            work: from tensors that stay where they are; nothing of it is read back, and no shape depends on a number.

        Raises:
            RuntimeError: if it cannot be recorded. What it wrote may be written once more.
        """

    def replay(self) -> None:
        """Do the work again."""


class CudaGraph:
    """See `Graph`, and "CUDA Graphs" in the manual of PyTorch.

    Args:
        stream: what graphs of one memory are recorded on.
        pool: their memory, from `torch.cuda.graph_pool_handle`: what one leaves there, the next may overwrite, apart
            from results that are still held.
    """

    def __init__(self, stream: torch.cuda.Stream, pool: tuple[int, int]) -> None:
        self._stream, self._pool = stream, pool
        self._graph = torch.cuda.CUDAGraph()

    def record(self, work: Work) -> torch.Tensor:
        """Record; see `Graph`. The first run, outside of the graph, lets libraries set themselves up."""
        with _ALONE, torch.cuda.device(self._stream.device):
            before = torch.cuda.current_stream()
            self._stream.wait_stream(before)
            # Entered here too: if recording fails, torch.cuda.graph does not give back the stream that was in use.
            with torch.cuda.stream(self._stream):
                work()
                mode = "thread_local"  # other threads may have stages of their own on a device
                with torch.cuda.graph(self._graph, self._pool, self._stream, capture_error_mode=mode):
                    found = work()
            before.wait_stream(self._stream)
        return found

    def replay(self) -> None:
        """Do the work again; see `Graph`."""
        self._graph.replay()


def prepare_graphs(device: torch.device) -> Callable[[], Graph]:
    """Return a function that makes graphs which share memory on a CUDA device."""
    stream, pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
    return lambda: CudaGraph(stream, pool)
