"""Chooses the runner of a loaded model, and plans its pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from parallax_backend_mlx.budget import plan_account
from parallax_backend_mlx.cache_layout import Layout, read_layout
from parallax_backend_mlx.network import PAGE_TOKENS, Network
from parallax_backend_mlx.paged_runner import PagedRunner
from parallax_backend_mlx.patches import replace_functions
from parallax_backend_mlx.results import Runner
from parallax_backend_mlx.row_groups import Grouping
from parallax_backend_mlx.selftest import choose_grouping
from parallax_backend_mlx.serial_runner import SerialRunner
from parallax_backend_mlx.settings import Kernel
from parallax_core.api import PagePool, PoolInfo
from parallax_stage_tools.pools import Room, plan_pools

PASSES = 3
"""Memory passes per padded key: read, write, read."""


@dataclass(frozen=True, slots=True)
class RunnerPlan:
    """The pools of a stage, and its runner."""

    pools: tuple[PoolInfo, ...]
    make_runner: Callable[[Sequence[PagePool]], Runner]
    """Makes the runner of a stage, given the pools of its account."""


@dataclass(frozen=True, slots=True)
class Paging:
    """The use of pages by a network."""

    layout: Layout
    grouping: Grouping


@dataclass(frozen=True, slots=True)
class TriedNetwork:
    """A network, of which is known how it runs."""

    network: Network
    weight_bytes: int
    """The bytes of its weights."""
    paging: Paging | None
    """None if its caches do not fit into pages, or rows on pages give other results."""


def try_network(network: Network, weight_bytes: int, kernel: Kernel = "auto") -> TriedNetwork:
    """Run a network for a few tokens to find out how it runs, on pages if the model allows it.

    Args:
        network: the model.
        weight_bytes: the bytes of the weights.
        kernel: see `MlxSettings`.
    """
    replace_functions(kernel)
    layout = read_layout(network)
    grouping = choose_grouping(network, layout) if layout is not None else None
    if layout is None or grouping is None:
        return TriedNetwork(network, weight_bytes, None)
    spare_keys = _count_spare(layout, weight_bytes)
    return TriedNetwork(network, weight_bytes, Paging(layout, replace(grouping, spare_keys=spare_keys)))


def plan_runner(tried: TriedNetwork, room: Room) -> RunnerPlan:
    """Return the pools of a stage and its runner.

    Args:
        tried: the network to run.
        room: the memory for keys, values and states.

    Raises:
        OutOfPages: if there is no memory for a single page.
    """
    network, paging = tried.network, tried.paging
    if paging is None:
        return RunnerPlan(_plan_serial(network, room), lambda _: SerialRunner(network))
    pools = tuple(plan_pools(paging.layout.list_sizes(), room))
    return RunnerPlan(pools, partial(PagedRunner, network, paging.layout, grouping=paging.grouping))


def _count_spare(layout: Layout, weight_bytes: int) -> int:
    """Return the number of padded keys that take as much memory traffic as all weights."""
    key_bytes = sum(layout.count_bytes(pool) for pool in layout.list_pools() if pool[0] != "state")
    return weight_bytes // (PASSES * key_bytes) if key_bytes else 0


def _plan_serial(network: Network, room: Room) -> tuple[PoolInfo, ...]:
    """Return the pool that accounts for memory, and a pool of states for models that cannot be truncated."""
    pool = plan_account(network.shape.page_bytes, PAGE_TOKENS, room.num_bytes, room.context_length)
    return (pool,) if network.can_rewind() else (pool, PoolInfo(kind="state", page_size=1, num_pages=pool.num_pages))
