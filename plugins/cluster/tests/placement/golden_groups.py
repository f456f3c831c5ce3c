"""Groups the nodes of random rooms into pipelines; run as a module, it writes the golden groups.

Whoever changes how the baselines group nodes deletes the file, runs this, and reads what differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from parallax_cluster.placement.baselines import LayerRoom, fill_water, group_greedily, group_optimally
from parallax_core.contracts.placement import DeviceProfile, NodeProfile

GOLDEN = Path(__file__).with_suffix(".json")
SEEDS = range(40)
ALL, FEW = 10_000, 3
"""The states that are kept: as many as there are, and so few that pipelines are missed."""

Groups = list[list[list[int]]]
"""Of each pipeline: its nodes, and their layers."""


def draw_room(seed: int) -> LayerRoom:
    """Return a random room of up to eight nodes, of which some hold no layer."""
    random = Random(seed)
    nodes = tuple(
        NodeProfile(
            name=f"{rank}",
            device=DeviceProfile(memory=random.randint(1, 24), flops=random.choice([1, 2, 5, 9]), bandwidth=1),
        )
        for rank in range(random.randint(2, 8))
    )
    ends = random.choice([0, 1, 2]), random.choice([0, 1, 3])
    return LayerRoom(nodes, random.randint(2, 14), random.choice([1, 1.5, 2]), *ends, random.choice([0.5, 0.75, 1]))


def group_room(seed: int) -> dict[str, Groups]:
    """Return the groups of the room of a seed, by how they are found."""
    room = draw_room(seed)
    found = {
        "greedy": group_greedily(room),
        "optimal": group_optimally(room, ALL),
        "few": group_optimally(room, FEW),
    }
    return {name: [[nodes, fill_water(room, nodes)] for nodes in groups] for name, groups in found.items()}


def main() -> None:
    """Write the golden groups, if there are none."""
    if not GOLDEN.exists():
        lines = (f" {json.dumps(group_room(seed))}" for seed in SEEDS)
        GOLDEN.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
