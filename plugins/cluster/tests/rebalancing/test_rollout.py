from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.layer_plan import Stages
from parallax_cluster.placement.leased import check_shared
from parallax_cluster.rebalancing.rollout import NOTICE_S, PATIENCE_S, Rollout, order_moves
from parallax_core.contracts.placement import PlacedStage, Placement, StageLease
from parallax_core.contracts.stage import LayerRange


def place(nodes: str) -> Stages:
    return tuple(PlacedStage(node, LayerRange(index, index + 1)) for index, node in enumerate(nodes))


def plan(**pipelines: str) -> dict[int, Stages]:
    """Return pipelines from arguments such as ``r0="ab"``: the nodes of rank 0."""
    return {int(name[1:]): place(nodes) for name, nodes in pipelines.items()}


def draw_plan(random: Random) -> dict[int, Stages]:
    nodes = [chr(ord("a") + index) for index in range(12)]
    random.shuffle(nodes)
    found = {}
    for rank in random.sample(range(6), random.randint(1, 5)):
        size = random.randint(1, 3)
        if len(nodes) >= size:
            found[rank] = place("".join(nodes.pop() for _ in range(size)))
    return found


@given(st.integers(0, 2**32))
def test_steps_are_those_that_differ_and_who_gives_comes_first(seed: int) -> None:
    random = Random(seed)
    current, planned = draw_plan(random), draw_plan(random)
    steps = order_moves(current, planned)
    moved = [rank for step in steps for rank in step.ranks]
    assert sorted(moved) == [rank for rank in range(6) if current.get(rank) != planned.get(rank)]
    held = {stage.node: rank for rank, stages in current.items() for stage in stages}
    for step in steps:
        for rank in step.ranks:
            held = {node: owner for node, owner in held.items() if owner != rank}
        for rank in step.ranks:
            for stage in planned.get(rank, ()):
                assert stage.node not in held, "its holder has moved before, or moves at the same time"


@given(st.integers(0, 2**32))
def test_rollout_ends_with_the_plan_and_moves_one_step_after_the_other(seed: int) -> None:
    random = Random(seed)
    current, planned = draw_plan(random), draw_plan(random)
    rollout, now, moving, told = Rollout(current, planned, (), 0.0), 0.0, frozenset[int](), dict(current)
    while rollout.pending:
        ready = {rank for rank in moving if random.random() < 0.5}
        serving = {rank for rank in current if told.get(rank) == current[rank]}
        moved = rollout.advance(lambda rank, ready=ready: rank in ready, now)  # type: ignore[misc]
        for rank in moved:
            told.pop(rank, None)
            told |= {rank: planned[rank]} if rank in planned else {}
        if moved & serving:
            assert now >= NOTICE_S, "a pipeline that serves moves after notice only"
            assert moving <= ready, "and after those that moved before"
        moving = (moving - ready) | (moved & frozenset(planned))
        now += 0.25
    assert told == planned


def test_one_pipeline_serves_while_the_other_moves() -> None:
    rollout = Rollout(plan(r0="ab", r1="cd"), plan(r0="ba", r1="dc"), (), 10.0)
    assert rollout.pending == {0, 1}
    assert not rollout.advance(lambda rank: True, 10.5), "it is said before it is done"
    assert rollout.advance(lambda rank: True, 11.0) == {0}
    assert not rollout.advance(lambda rank: False, 12.0)
    assert rollout.advance(lambda rank: True, 13.0) == {1}
    assert rollout.pending == {1}
    assert not rollout.advance(lambda rank: True, 14.0)
    assert not rollout.pending


def test_pipelines_that_exchange_nodes_move_together_and_a_third_serves() -> None:
    steps = order_moves(plan(r0="ab", r1="cd", r2="ef"), plan(r0="ac", r1="bd", r2="fe"))
    assert [set(step.ranks) for step in steps] == [{2}, {0, 1}]


def test_pipeline_that_lost_a_node_does_not_wait() -> None:
    rollout = Rollout(plan(r0="ab", r1="cd", r2="ef"), plan(r0="ac", r1="d", r2="fe"), [0], 0.0)
    assert rollout.advance(lambda rank: False, 0.0) == {0, 1}
    assert not rollout.advance(lambda rank: rank == 0, 0.1)
    assert rollout.advance(lambda rank: True, 0.2) == {2}


def test_new_pipeline_of_free_nodes_does_not_wait() -> None:
    assert Rollout({}, plan(r0="ab"), (), 0.0).advance(lambda rank: True, 0.0) == {0}
    rollout = Rollout(plan(r0="ab"), plan(r0="ba", r1="cd"), (), 0.0)
    assert rollout.advance(lambda rank: False, 0.0) == {1}
    assert not rollout.advance(lambda rank: False, 5.0)
    assert rollout.advance(lambda rank: True, 6.0) == {0}


def test_pipeline_that_does_not_get_ready_holds_the_others_up_for_a_while_only() -> None:
    rollout = Rollout(plan(r0="ab", r1="cd"), plan(r0="ba", r1="dc"), (), 0.0)
    assert rollout.advance(lambda rank: False, NOTICE_S) == {0}
    assert not rollout.advance(lambda rank: False, NOTICE_S + PATIENCE_S - 1)
    assert rollout.advance(lambda rank: False, NOTICE_S + PATIENCE_S) == {1}


def draw_leases(random: Random) -> dict[int, Stages]:
    """Return pipelines some of which share nodes, whose leases fit each other."""
    holds = {node: LayerRange(0, random.choice([1, 1, 1, 2])) for node in "abcdef"}
    counts = dict.fromkeys(holds, 0)
    wanted = {rank: random.sample(sorted(holds), random.randint(1, 3)) for rank in random.sample(range(6), 4)}
    users = {node: sum(node in nodes for nodes in wanted.values()) for node in holds}
    found = {}
    for rank, nodes in wanted.items():
        stages: list[PlacedStage] = []
        for node in nodes:
            lease = StageLease(counts[node], holds[node], random.choice([1 / users[node], 0.5 / users[node]]))
            counts[node] += 1
            is_shared = users[node] > 1 or random.random() < 0.3
            stages.append(PlacedStage(node, holds[node], lease if is_shared else None))
        found[rank] = tuple(stages)
    return found


def check_held(pipelines: Mapping[int, Stages]) -> None:
    """Check that what pipelines hold of each node fits together."""
    check_shared(Placement(tuple(pipelines.values())))


@given(st.integers(0, 2**32))
def test_nothing_that_a_pipeline_holds_which_has_not_moved_is_given_away(seed: int) -> None:
    random = Random(seed)
    current, planned = draw_leases(random), draw_leases(random)
    kept = {rank: current[rank] for rank in random.sample(sorted(current), 2)}
    try:
        check_held(planned | kept)
    except ValueError:  # their leases do not fit those of the others
        kept = {}
    planned |= kept
    held = dict(current)
    for step in order_moves(current, planned):
        assert all(current.get(rank) != planned.get(rank) for rank in step.ranks), "the others stay"
        assert step.needs.isdisjoint(step.ranks)
        for rank in step.ranks:
            held.pop(rank, None)
        held |= {rank: planned[rank] for rank in step.ranks if rank in planned}
        check_held(held)
    assert held == planned


@given(st.integers(0, 2**32))
def test_step_needs_no_pipeline_that_moves_later(seed: int) -> None:
    random = Random(seed)
    moved = set[int]()
    for step in order_moves(draw_leases(random), draw_leases(random)):
        assert step.needs <= moved
        moved |= step.ranks


def share(**pipelines: str) -> dict[int, Stages]:
    """Return pipelines from arguments such as ``r0="h2a"``: a lease of half of ``h``, and all of ``a``."""
    found: dict[int, Stages] = {}
    numbers: dict[str, int] = {}
    for name, text in pipelines.items():
        stages: list[PlacedStage] = []
        for node, parts in re.findall(r"([a-z])(\d?)", text):
            number = numbers[node] = numbers.get(node, -1) + 1
            layers = LayerRange(len(stages), len(stages) + 1)
            stages.append(PlacedStage(node, layers, StageLease(number, layers, 1 / int(parts)) if parts else None))
        found[int(name[1:])] = tuple(stages)
    return found


def test_pipelines_that_share_a_node_whose_shares_change_move_together() -> None:
    current, planned = share(r0="h2a", r1="h2b", r2="c"), share(r0="h3a", r1="h3b", r2="c", r3="h3d")
    steps = order_moves(current, planned)
    assert [(set(step.ranks), set(step.needs)) for step in steps] == [({0, 1}, set()), ({3}, {0, 1})]


def test_pipelines_that_share_a_node_and_keep_their_shares_stay() -> None:
    current, planned = share(r0="h4a", r1="h4b"), share(r0="h4a", r1="h4b", r2="h4c")
    assert [set(step.ranks) for step in order_moves(current, planned)] == [{2}]
    assert Rollout(current, planned, (), 0.0).advance(lambda rank: False, 0.0) == {2}, "at once"


def test_node_that_is_to_be_shared_is_given_up_first_by_the_pipeline_that_has_all_of_it() -> None:
    steps = order_moves(share(r0="ha"), share(r0="h2a", r1="h2b"))
    assert [(set(step.ranks), set(step.needs)) for step in steps] == [({0}, set()), ({1}, {0})]
