"""Records work on a CUDA device as a graph, and replays it with one launch."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Protocol

import torch

from parallax_backend_torch.step import Carried

Work = Callable[[], Carried]

_ALONE = Lock()
"""PyTorch records only one graph at a time in a process."""


class Graph(Protocol):
    """Work that is recorded once, and repeated with other numbers in the same memory."""

    def record(self, work: Work) -> Carried:
        """Run ``work`` once, record it, and return the tensors to which each `replay` writes its result.

        Args:
            work: uses tensors that stay at their addresses, reads nothing back, and has no shape that depends on a
                computed number.

        Raises:
            RuntimeError: if it cannot be recorded. ``work`` may have run, and may be run again.
        """

    def replay(self) -> None:
        """Repeat the work."""


class CudaGraph:
    """See `Graph`, and "CUDA Graphs" in the manual of PyTorch.

    Args:
        stream: the stream on which graphs with the same memory are recorded.
        pool: the memory of these graphs, from `torch.cuda.graph_pool_handle`: one graph may overwrite the results of
            another, unless they are still referenced.
    """

    def __init__(self, stream: torch.cuda.Stream, pool: tuple[int, int]) -> None:
        self._stream, self._pool = stream, pool
        self._graph = torch.cuda.CUDAGraph()

    def record(self, work: Work) -> Carried:
        """Record; see `Graph`. The first run, outside the graph, initialises libraries."""
        with _ALONE, torch.cuda.device(self._stream.device):
            before = torch.cuda.current_stream()
            self._stream.wait_stream(before)
            # Entered here too: if recording fails, torch.cuda.graph does not restore the previous stream.
            with torch.cuda.stream(self._stream):
                work()
                mode = "thread_local"  # other threads may have stages on the same device
                with torch.cuda.graph(self._graph, self._pool, self._stream, capture_error_mode=mode):
                    found = work()
            before.wait_stream(self._stream)
        return found

    def replay(self) -> None:
        """Repeat the work; see `Graph`."""
        self._graph.replay()


def prepare_graphs(device: torch.device) -> Callable[[], Graph]:
    """Return a function that makes graphs with shared memory on a CUDA device."""
    stream, pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
    return lambda: CudaGraph(stream, pool)
