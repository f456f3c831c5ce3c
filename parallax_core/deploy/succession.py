"""The term of the coordinator of this machine, and what its standbys are told."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from parallax_core.base.errors import ParallaxError
from parallax_core.base.ids import name_machine
from parallax_core.cluster.membership.standby_state import ClusterSettings, StandbyState
from parallax_core.cluster.membership.succession import Term
from parallax_core.cluster.stage_row import read_row, write_row
from parallax_core.config.home import term_file
from parallax_core.config.run import RunSettings
from parallax_core.contracts.joining import MachineKeys
from parallax_core.node.coordinator.coordinator import Coordinator
from parallax_core.node.coordinator.own_node import OWN_NODE
from parallax_core.node.coordinator.plan_store import FormerPlan
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.standbys import Standbys
from parallax_core.node.membership.term_store import TermStore

logger = logging.getLogger(__name__)


def adopt_machines(keys: MachineKeys) -> None:
    """Have the machines of a cluster that this machine has taken over admitted as its own are, once."""
    store = TermStore(term_file())
    state = store.find()
    if state is None or not (state.machines or state.removed):
        return
    try:
        keys.take_over(state.machines, state.removed)
        store.keep(msgspec.structs.replace(state, machines={}, removed={}))
    except ParallaxError as error:  # the others can join all the same
        logger.warning("machines of the former server may be unknown here: %s; %s", error.message, error.hint)


@asynccontextmanager
async def followed(
    coordinator: Coordinator,
    registry: NodeRegistry,
    settings: RunSettings,
    find_memories: Callable[[], Mapping[str, int]],
    find_other_models: Callable[[], Sequence[str]],
) -> AsyncIterator[Standbys]:
    """Tell nodes the term of this machine's coordinator, and standbys all they have to know.

    ``find_memories`` returns the memory of each node before it loaded layers, and ``find_other_models`` the models
    that are loaded besides the first.

    Raises:
        ParallaxError: if the term cannot be read or kept.
    """
    first = TermStore(term_file()).begin(settings.model)

    def describe() -> StandbyState:
        joined = {name_machine(node.name): node.channel.key for node in registry.joined if node.channel.key}
        machines, removed = {**first.machines, **joined}, first.removed
        if (keys := registry.keys) is not None:
            machines, removed = {**keys.list_machines(), **machines}, {**removed, **keys.list_removed()}
        plan = {rank: [write_row(stage) for stage in stages] for rank, stages in coordinator.plan.pipelines.items()}
        return msgspec.structs.replace(
            first,
            model=settings.model,
            settings=ClusterSettings(**{name: getattr(settings, name) for name in ClusterSettings.__struct_fields__}),
            machines={name: key for name, key in machines.items() if key not in removed},
            removed=removed,
            plan=plan,
            memories=dict(find_memories()),
            other_models=list(find_other_models()),
        )

    standbys = Standbys(registry, Term(first.cluster, first.term), describe, coordinator.end)
    standbys.start()
    try:
        yield standbys
    finally:
        await standbys.stop()


def recall_plan(state: StandbyState) -> FormerPlan:
    """Return the plan of a coordinator of ``state``, with which one that takes over begins, without its own node."""
    pipelines = {
        rank: tuple(read_row(row) for row in rows)
        for rank, rows in state.plan.items()
        if OWN_NODE not in {row[0] for row in rows}
    }
    return FormerPlan(pipelines, {node: memory for node, memory in state.memories.items() if node != OWN_NODE})


def adopt_settings(settings: RunSettings, state: StandbyState) -> RunSettings:
    """Return the settings of a standby that takes over from a coordinator of ``state``."""
    return dataclasses.replace(settings, **msgspec.structs.asdict(state.settings), model=state.model, standby_of="")
