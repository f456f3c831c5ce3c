"""The term of the coordinator of this machine, and what its standbys are told."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from nacl.signing import SigningKey

from parallax_cluster.config.home import term_file, term_key_file
from parallax_cluster.config.run import RunSettings
from parallax_cluster.deploy.signing_key import ensure_signing_key
from parallax_cluster.membership.standby_state import ClusterSettings, StandbyState
from parallax_cluster.node.coordinator.coordinator import Coordinator
from parallax_cluster.node.coordinator.own_node import OWN_NODE
from parallax_cluster.node.coordinator.plan_store import FormerPlan
from parallax_cluster.node.membership.own_term import OwnTerm, check_newer, open_term
from parallax_cluster.node.membership.standbys import Standbys
from parallax_cluster.node.membership.term_store import TermStore
from parallax_cluster.placement.stage_row import read_row, write_row
from parallax_core.api import MachineKeys, ParallaxError, name_machine
from parallax_core.node.membership.registry import NodeRegistry

logger = logging.getLogger(__name__)


def adopt_machines(keys: MachineKeys) -> None:
    """Admit, once, the machines of a cluster that this machine has taken over."""
    store = TermStore(term_file())
    state = store.find()
    if state is None or not (state.machines or state.removed or state.servers):
        return
    try:
        keys.take_over(state.machines, state.removed, state.servers)
        store.keep(msgspec.structs.replace(state, machines={}, removed={}, servers={}))
    except ParallaxError as error:  # the others can join all the same
        logger.warning("machines of the former server may be unknown here: %s; %s", error.message, error.hint)


@dataclass(frozen=True, slots=True)
class ToldState:
    """What standbys are told besides the term, as it is now."""

    settings: RunSettings
    coordinator: Coordinator
    """Of the first model."""
    find_memories: Callable[[], Mapping[str, int]]
    """Returns the memory of each node before it loaded layers."""
    find_other_models: Callable[[], Sequence[str]]
    """Returns the models that are loaded besides the first."""
    drained: Collection[str] = ()
    """The drained machines, by name."""

    def describe(self, own: StandbyState, registry: NodeRegistry) -> StandbyState:
        """Return the state of the coordinator, whose own is ``own``."""
        joined = {name_machine(node.name): node.channel.key for node in registry.joined if node.channel.key}
        machines, removed = {**own.machines, **joined}, own.removed
        if (keys := registry.keys) is not None:
            machines, removed = {**keys.list_machines(), **machines}, {**removed, **keys.list_removed()}
        pipelines, settings = self.coordinator.plan.pipelines, self.settings
        return msgspec.structs.replace(
            own,
            model=settings.model,
            settings=ClusterSettings(**{name: getattr(settings, name) for name in ClusterSettings.__struct_fields__}),
            machines={name: key for name, key in machines.items() if key not in removed},
            removed=removed,
            plan={rank: [write_row(stage) for stage in stages] for rank, stages in pipelines.items()},
            memories=dict(self.find_memories()),
            other_models=list(self.find_other_models()),
            drained=sorted(self.drained),
        )


@asynccontextmanager
async def followed(
    registry: NodeRegistry, own: OwnTerm, told: ToldState, end: Callable[[str], None]
) -> AsyncIterator[Standbys]:
    """Prove the term of this machine's coordinator to nodes, and tell standbys all they have to know.

    ``end`` is called once another coordinator has taken over.
    """
    standbys = Standbys(registry, own, lambda: told.describe(own.state, registry), end)
    standbys.start()
    try:
        yield standbys
    finally:
        await standbys.stop()


def check_taken_over(settings: RunSettings) -> None:
    """Check that no other coordinator is known to have taken over from that of this machine, before it is served.

    Raises:
        ParallaxError: if one has, and no new term is to begin; or if the state of the coordinator cannot be read.
    """
    state = TermStore(term_file()).find()
    if state is not None and not settings.new_term:
        check_newer(state)


def find_promotion_hint() -> str:
    """Return the hint for `parallax cluster promote` on a machine without a standby."""
    try:
        state = TermStore(term_file()).find()
    except ParallaxError:
        state = None
    start = "start one: `parallax run --standby-of CODE`"
    if state is None:
        return start
    return f"{start}; if this is the old server, and the new one is lost for good: `parallax run --new-term`"


def open_own_term(settings: RunSettings, key: bytes) -> OwnTerm:
    """Return the term of this machine's coordinator, which proves ``key`` on its links.

    Raises:
        ParallaxError: if another coordinator has taken over, or the term cannot be read or kept.
    """
    return open_term(TermStore(term_file()), _find_signing_key(), key, settings.model, is_new=settings.new_term)


def _find_signing_key() -> SigningKey:
    """Return the key that signs the terms of this machine; one that cannot be kept holds until a restart.

    Raises:
        ParallaxError: if there is one that cannot be used.
    """
    try:
        return ensure_signing_key(term_key_file())
    except ParallaxError as error:
        if term_key_file().exists():
            raise
        logger.warning("%s; until a restart, another one holds", error.message)
        return SigningKey.generate()


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
