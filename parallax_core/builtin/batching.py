"""The built-in batching policy."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_core.contracts.policy import QueueView


@dataclass(frozen=True, slots=True)
class WorkConserving:
    """Begin whenever the pipeline has room for a step, so that it never idles while a request could run."""

    def wait_s(self, queue: QueueView) -> float:
        """Return 0: the engine itself waits for room in the pipeline."""
        del queue
        return 0.0
