"""The term of the coordinator of this machine, and what its standbys are told."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from parallax_core.cluster.membership.standby_state import ClusterSettings, StandbyState
from parallax_core.cluster.membership.succession import Term
from parallax_core.config.home import term_file
from parallax_core.config.run import RunSettings
from parallax_core.node.coordinator.coordinator import Coordinator
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.standbys import Standbys
from parallax_core.node.membership.term_store import TermStore


@asynccontextmanager
async def followed(coordinator: Coordinator, registry: NodeRegistry, settings: RunSettings) -> AsyncIterator[Standbys]:
    """Tell nodes the term of this machine's coordinator, and standbys all they have to know.

    Raises:
        ParallaxError: if the term cannot be read or kept.
    """
    first = TermStore(term_file()).begin(settings.model)

    def describe() -> StandbyState:
        keys = {node.name.partition("/")[0]: node.channel.key for node in registry.joined if node.channel.key}
        plan = {
            rank: [(stage.node, stage.layers.start, stage.layers.stop) for stage in stages]
            for rank, stages in coordinator.plan.pipelines.items()
        }
        return msgspec.structs.replace(
            first,
            model=settings.model,
            settings=ClusterSettings(**{name: getattr(settings, name) for name in ClusterSettings.__struct_fields__}),
            machines={**first.machines, **keys},
            plan=plan,
        )

    standbys = Standbys(registry, Term(first.cluster, first.term), describe, coordinator.end)
    standbys.start()
    try:
        yield standbys
    finally:
        await standbys.stop()


def adopt_settings(settings: RunSettings, state: StandbyState) -> RunSettings:
    """Return the settings of a standby that takes over from a coordinator of ``state``."""
    return dataclasses.replace(settings, **msgspec.structs.asdict(state.settings), model=state.model, standby_of="")
