"""Keeps a coordinator's last plan and loaded models for its restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parallax_cluster.layer_plan import Stages
from parallax_cluster.node.membership.database import open_database, write_database
from parallax_cluster.placement.stage_row import NO_LEASE, read_row, write_row
from parallax_core.api import PlacedStage

SCHEMA = """
CREATE TABLE IF NOT EXISTS stage (
    model TEXT NOT NULL, replica INTEGER NOT NULL, place INTEGER NOT NULL, node TEXT NOT NULL,
    start INTEGER NOT NULL, stop INTEGER NOT NULL, PRIMARY KEY (model, replica, place)
);
CREATE TABLE IF NOT EXISTS lease (
    model TEXT NOT NULL, replica INTEGER NOT NULL, place INTEGER NOT NULL, number INTEGER NOT NULL,
    start INTEGER NOT NULL, stop INTEGER NOT NULL, memory_share REAL NOT NULL, PRIMARY KEY (model, replica, place)
);
CREATE TABLE IF NOT EXISTS node (model TEXT NOT NULL, name TEXT NOT NULL, memory INTEGER NOT NULL,
    PRIMARY KEY (model, name));
CREATE TABLE IF NOT EXISTS drained (machine TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS loaded (first TEXT NOT NULL, place INTEGER NOT NULL, model TEXT NOT NULL,
    PRIMARY KEY (first, place));
"""
FIND_STAGES = """
SELECT replica, node, stage.start, stage.stop, ifnull(number, -1), ifnull(lease.start, stage.start),
    ifnull(lease.stop, stage.stop), ifnull(memory_share, 1.0)
FROM stage LEFT JOIN lease USING (model, replica, place) WHERE model = ? ORDER BY replica, place
"""
VERSION = 4
CONTENT = "the last plan"


@dataclass(frozen=True, slots=True)
class FormerPlan:
    """What a coordinator knew before it was restarted."""

    pipelines: Mapping[int, Stages] = field(default_factory=dict)
    """By rank."""
    memories: Mapping[str, int] = field(default_factory=dict)
    """By node: the bytes that were free before it loaded layers."""


class PlanStore:
    """The last plan of each model. Every method raises ParallaxError if the file cannot be read or written."""

    def __init__(self, path: Path) -> None:
        """Keep plans in ``path``."""
        self._path = path

    def save(self, model: str, plan: FormerPlan) -> None:
        """Keep the plan of a model, in place of an earlier one."""
        rows = [
            ((model, rank, place), write_row(stage))
            for rank, pipeline in plan.pipelines.items()
            for place, stage in enumerate(pipeline)
        ]
        stages = [(*key, *row[:3]) for key, row in rows]
        leases = [(*key, *row[3:]) for key, row in rows if row[3] != NO_LEASE]
        nodes = [(model, name, memory) for name, memory in plan.memories.items()]
        with write_database(self._path, SCHEMA, VERSION, CONTENT) as database:
            database.execute("DELETE FROM stage WHERE model = ?", (model,))
            database.execute("DELETE FROM lease WHERE model = ?", (model,))
            database.execute("DELETE FROM node WHERE model = ?", (model,))
            database.executemany("INSERT INTO stage VALUES (?, ?, ?, ?, ?, ?)", stages)
            database.executemany("INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?)", leases)
            database.executemany("INSERT INTO node VALUES (?, ?, ?)", nodes)

    def find(self, model: str) -> FormerPlan:
        """Return the last plan of a model, or an empty one."""
        pipelines: dict[int, list[PlacedStage]] = {}
        with open_database(self._path, SCHEMA, VERSION, CONTENT) as database:
            for rank, node, start, stop, number, first, end, share in database.execute(FIND_STAGES, (model,)):
                stage = read_row((node, start, stop, number, first, end, share))
                pipelines.setdefault(rank, []).append(stage)
            nodes = database.execute("SELECT name, memory FROM node WHERE model = ?", (model,)).fetchall()
        return FormerPlan({rank: tuple(stages) for rank, stages in pipelines.items()}, dict(nodes))

    def note_drained(self, machine: str, *, is_drained: bool) -> None:
        """Store that a machine is drained, or not any more."""
        change = "INSERT OR IGNORE INTO drained VALUES (?)" if is_drained else "DELETE FROM drained WHERE machine = ?"
        with write_database(self._path, SCHEMA, VERSION, CONTENT) as database:
            database.execute(change, (machine,))

    def find_drained(self) -> frozenset[str]:
        """Return the machines that are drained."""
        with open_database(self._path, SCHEMA, VERSION, CONTENT) as database:
            return frozenset(machine for (machine,) in database.execute("SELECT machine FROM drained"))

    def save_loaded(self, first: str, models: Sequence[str]) -> None:
        """Store which models are loaded besides the server's first."""
        with write_database(self._path, SCHEMA, VERSION, CONTENT) as database:
            database.execute("DELETE FROM loaded WHERE first = ?", (first,))
            rows = [(first, place, model) for place, model in enumerate(models)]
            database.executemany("INSERT INTO loaded VALUES (?, ?, ?)", rows)

    def find_loaded(self, first: str) -> tuple[str, ...]:
        """Return the models that were loaded besides the one with which the server was started, in their order."""
        with open_database(self._path, SCHEMA, VERSION, CONTENT) as database:
            rows = database.execute("SELECT model FROM loaded WHERE first = ? ORDER BY place", (first,)).fetchall()
        return tuple(model for (model,) in rows)
