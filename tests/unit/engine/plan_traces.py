"""Plans random traffic, and says briefly which steps were planned; run as a module, it writes the golden plans.

    python -m tests.unit.engine.plan_traces

Delete `GOLDEN` and run it after a change that is meant to change plans.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import deque
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from parallax_core.api import LayerRange, RequestId, Sampling, StageResult
from parallax_core.builtin.preemption import LowestPriority
from parallax_core.contracts.stage import PoolKind
from parallax_core.engine.limits import Limits
from parallax_core.testing.toy import GREEDY, Toy
from parallax_policies.preemption import NewestFirst
from tests.support.grammars import STOP, make_grammar
from tests.unit.engine.replica import Replica, make_request

GOLDEN = Path(__file__).with_name("golden_plans.json")
SEEDS = range(60)
EVENTS = 150
CONTEXT = 24


class PlanTrace:
    """Sends requests to a head at random, and notes every step that it plans."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.draw = random.Random(seed)
        self.replica = Replica(*self._open_stages(), limits=self._draw_limits(), **self._draw_options(), **options)
        self.replica.token_s = self.draw.choice([0.0, 0.001])
        self.results: deque[StageResult] = deque()
        self.num_requests = 0
        self.steps: list[str] = []
        """The epoch, the edits, the rows and the masks of each step."""

    def run(self, num_events: int = EVENTS) -> str:
        """Return a digest of the steps that were planned until all requests had ended."""
        for _ in range(num_events):
            self._happen()
        for _ in range(3000):
            self._plan()
            self._absorb()
        return hashlib.sha256("\n".join(self.steps).encode()).hexdigest()[:16]

    def _open_stages(self) -> list[Any]:
        kinds: tuple[PoolKind, ...] = self.draw.choice(
            [("full",) * 4, ("full", "window"), ("latent", "full"), ("state",), ("full",)]
        )
        borders = sorted({0, len(kinds), self.draw.randint(0, len(kinds))})
        page_size = self.draw.randint(1, 5)
        return [
            Toy(kinds).open(
                LayerRange(*pair),
                page_size=page_size,
                num_pages=-(-CONTEXT // page_size) + self.draw.randint(0, 6),
                max_batch_tokens=self.draw.randint(2, 20),
                context=CONTEXT,
                rewind=self.draw.randint(0, 3),
                state_pages=self.draw.randint(2, 6),
                checkpoint_every=self.draw.choice([0, 0, 3]),
                steps_ahead=self.draw.randint(0, 2),
            )
            for pair in pairwise(borders)
        ]

    def _draw_limits(self) -> Limits:
        header_bytes = self.draw.choice([1500, 2**22, 2**22])
        return Limits(
            max_running=self.draw.randint(1, 8), min_shared=self.draw.randint(1, 5), header_bytes=header_bytes
        )

    def _draw_options(self) -> dict[str, Any]:
        target_s = self.draw.choice([None, None, 1e-9, 0.003])
        return {"preemption": self.draw.choice([NewestFirst(), LowestPriority()]), "target_itl_s": target_s}

    def _happen(self) -> None:
        match self.draw.choices(["submit", "plan", "absorb", "cancel", "restart", "wait"], [8, 8, 8, 1, 0.3, 0.5])[0]:
            case "submit":
                self._submit()
            case "plan":
                self._plan()
            case "absorb":
                self._absorb()
            case "cancel" if self.num_requests:
                self.replica.head.cancel(RequestId(str(self.draw.randrange(self.num_requests))))
            case "restart":
                self.replica.head.restart()
                self.results.clear()
            case "wait":
                self.replica.now += 25.0

    def _submit(self) -> None:
        request = make_request(
            self.draw.choices(range(3), k=self.draw.randint(1, 14)),
            self.draw.randint(1, 8),
            sampling=self.draw.choice([GREEDY, Sampling(seed=1), Sampling(seed=2, temperature=0.5)]),
            priority=self.draw.choice([0, 0, 0, -2, 1]),
            n=self.draw.choice([1, 1, 1, 3]),
            timeout_s=self.draw.choice([None, None, None, 20.0]),
            prompt_logprobs=self.draw.choice([None, None, None, 1]),
            client=self.draw.choice([b"a", b"b", b"c"]),
        )
        if self.draw.random() < 0.15:
            request = replace(request, grammar=make_grammar(3, 3), stop_ids=frozenset({STOP}), prompt_logprobs=None)
        self.replica.submit(replace(request, id=RequestId(str(self.num_requests))))
        self.num_requests += 1

    def _plan(self) -> None:
        self.replica.now += 0.01
        self.replica.give_masks()
        if (step := self.replica.head.plan(self.replica.now)) is not None:
            rows = [(row.seq, row.start, row.tokens, row.outputs) for row in step.batch.rows]
            self.steps.append(repr((step.epoch, step.edits, rows, step.masks)))
            self.results.append(self.replica.compute(step))

    def _absorb(self) -> None:
        if self.results:
            self.replica.head.absorb(self.results.popleft(), self.replica.now)
        self.replica.collect()


def main() -> None:
    """Write the golden plans, if there are none."""
    if not GOLDEN.exists():
        found = {str(seed): PlanTrace(seed).run() for seed in SEEDS}
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
