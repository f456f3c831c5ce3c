"""Pools the hidden states of a prompt while the stages compute it."""

from __future__ import annotations

import struct
from collections import deque
from operator import add

from parallax_core.contracts.engine import Pooling
from parallax_core.contracts.stage import Hidden
from parallax_core.contracts.tensor import Tensor


class PromptEmbedding:
    """The embedding of a prompt. Each hidden state is requested once, even if steps are repeated.

    Steps are absorbed in order, so the states arrive in the order of the requests.
    """

    def __init__(self, num_prompt: int, pooling: Pooling) -> None:
        self._num_prompt = num_prompt
        self._is_mean = pooling == "mean"
        self._num_taken = 0 if self._is_mean else num_prompt - 1
        """Leading prompt tokens already received or excluded from pooling."""
        self._pending: deque[int] = deque()
        """For each outstanding request, the leading prompt tokens received after it."""
        self._last: Tensor | None = None
        self._total: list[float] = []

    @property
    def num_asked(self) -> int:
        """Leading prompt tokens already requested or excluded from pooling."""
        return self._pending[-1] if self._pending else self._num_taken

    @property
    def is_asked(self) -> bool:
        """Whether all states were requested."""
        return self.num_asked >= self._num_prompt

    def ask(self, start: int, stop: int) -> tuple[Hidden, ...]:
        """Return the states to request in a row of the tokens from ``start`` to ``stop``; count them as requested."""
        first, last = max(start, self.num_asked), min(stop, self._num_prompt)
        if first >= last:
            return ()
        self._pending.append(last)
        return (Hidden(last - 1 - start, last - first if self._is_mean else 0),)

    def fits(self, tensor: Tensor) -> bool:
        """Return whether ``tensor`` can be the next state: a sum is float32, and as wide as those before."""
        if not self._is_mean:
            return True
        return tensor.dtype == "float32" and (not self._total or tensor.shape == (len(self._total),))

    def take(self, tensor: Tensor) -> None:
        """Add the next state."""
        self._num_taken = self._pending.popleft()
        if not self._is_mean:
            self._last = tensor
            return
        values = struct.unpack(f"<{tensor.shape[0]}f", tensor.data)
        self._total = list(map(add, self._total, values)) if self._total else list(values)

    def forget_steps(self) -> None:
        """Discard the outstanding states: they will be requested again."""
        self._pending.clear()

    def read(self) -> Tensor | None:
        """Return the embedding, of shape [width]; None before the last state has arrived."""
        if not self._is_mean or self._num_taken < self._num_prompt:
            return self._last
        width, count = len(self._total), self._num_prompt
        return Tensor("float32", (width,), struct.pack(f"<{width}f", *(value / count for value in self._total)))
