"""Predicts the turns of random pipelines, with nine digits; run as a module, it writes the golden predictions.

Whoever changes what is predicted deletes the file, runs this, and reads what differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from parallax_cluster.placement.paced_turns import PacedTurns
from parallax_cluster.placement.stage_step import StageStep

GOLDEN = Path(__file__).with_suffix(".json")
SEEDS = range(60)


def draw_turns(seed: int) -> PacedTurns:
    """Return the turns of a random pipeline with random requests."""
    random = Random(seed)
    stages = [
        StageStep(
            decode_s=10 ** random.uniform(-6, -3),
            prompt_s=random.choice([0.0, 10 ** random.uniform(-6, -3)]),
            read_s=10 ** random.uniform(-4, -1.5),
            row_s=random.choice([0.0, 10 ** random.uniform(-6, -4)]),
            prompt_row_s=random.choice([0.0, 1e-4]),
            experts=random.choice([(), ((0.75, 0.01),), ((0.9, 0.02), (0.5, 0.001))]),
            fixed_s=random.choice([0.0, 1e-4]),
        )
        for _ in range(random.choice([1, 1, 2, 3]))
    ]
    ways_s, copy_s = random.choice([0.0, 0.01]), random.choice([0.0, 1e-4])
    lengths = random.choice([16, 512, 9000]), random.choice([0, 15, 255])
    return PacedTurns(stages, ways_s, (copy_s,), random.choice([1, 2, 3, 4, 9, 32]), lengths)


def predict_turns(seed: int) -> list[str]:
    """Return the times of a request in the turns of a seed."""
    times = draw_turns(seed).measure()
    return [f"{each:.9g}" for each in (times.ttft_s, times.request_s, *times.stage_s)]


def main() -> None:
    """Write the golden predictions, if there are none."""
    if not GOLDEN.exists():
        lines = (f" {json.dumps(predict_turns(seed))}" for seed in SEEDS)
        GOLDEN.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
