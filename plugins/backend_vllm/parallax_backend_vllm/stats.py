"""Collects the statistics of a vLLM engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parallax_core.api import EngineStats, PoolUse


@dataclass(slots=True)
class Recorder:
    """Adds up what vLLM reports after each step; it calls its classes of statistics unstable, hence the ``getattr``."""

    num_blocks: int = 0
    """The blocks of the KV cache; 0: not known yet."""
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    """The share of the blocks in use."""

    def record(self, scheduler: Any, iteration: Any) -> None:  # noqa: ANN401 -- types of vLLM
        """Add the statistics of one step; either part may be None."""
        if scheduler is not None:
            self.running = getattr(scheduler, "num_running_reqs", 0)
            self.waiting = getattr(scheduler, "num_waiting_reqs", 0) + getattr(scheduler, "num_skipped_waiting_reqs", 0)
            self.usage = getattr(scheduler, "kv_cache_usage", 0.0)
        if iteration is not None:
            self.steps += 1
            prompt = getattr(iteration, "prompt_token_stats", None)
            self.prompt_tokens += getattr(prompt, "total", 0)
            self.cached_tokens += getattr(prompt, "cached_tokens", 0)
            self.output_tokens += getattr(iteration, "num_generation_tokens", 0)
            self.preemptions += getattr(iteration, "num_preempted_reqs", 0)

    def read(self, num_open: int) -> EngineStats:
        """Return the statistics; ``num_open`` requests are open: vLLM reports nothing more once all have ended."""
        pool = PoolUse(stage=0, kind="full", used=round(self.usage * self.num_blocks), total=self.num_blocks)
        return EngineStats(
            running=min(self.running, num_open),
            waiting=min(self.waiting, num_open),
            steps=self.steps,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            preemptions=self.preemptions,
            pools=(pool,) if self.num_blocks else (),
        )
