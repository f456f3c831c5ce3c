from __future__ import annotations

import dataclasses
import json
from math import inf
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.paced_turns import MOST_STEP_TOKENS, NEARLY, PacedTurns
from parallax_cluster.placement.stage_step import StageStep, count_groups
from parallax_core.contracts.placement import ClusterProfile, LinkProfile, ModelDemand, PlacementProblem, ServingGoal
from parallax_core.engine.pacing import RATIO
from parallax_simulate.pipeline import ExactPipeline, PipelineModel
from plugins.cluster.tests.placement.golden_turns import GOLDEN, SEEDS, predict_turns
from tests.support.clusters import GB, make_model, make_node
from tests.support.users import Measured, measure_users

STAGE = StageStep(decode_s=1e-4, prompt_s=1e-4, read_s=0.02, row_s=1e-4, prompt_row_s=0.0, experts=(), fixed_s=0.0)


def make_turns(num_requests: int, prompt: int = 512, decodes: int = 255, stage: StageStep = STAGE) -> PacedTurns:
    return PacedTurns([stage], 0.0, (), num_requests, (prompt, decodes))


def test_prompt_beside_answers_makes_a_turn_longer_by_the_ratio() -> None:
    turns = make_turns(4).find()
    assert turns.paced_s == pytest.approx(RATIO * 0.0204, rel=0.01)
    assert turns.limit == pytest.approx((RATIO * 0.0204 - turns.decodes * 1e-4) / 1e-4, rel=0.02)
    assert turns.number == pytest.approx(255 + 1 + 512 / turns.limit + 0.5, abs=1)
    assert turns.calm_s < turns.paced_s


def test_short_prompts_are_not_divided() -> None:
    turns = make_turns(4, prompt=32).find()
    assert turns.paced_s <= RATIO * 0.0204
    assert turns.waited == pytest.approx(1, abs=0.05)


def test_prompts_that_wait_for_most_of_the_time_make_turns_longer() -> None:
    few, many = make_turns(8, 2048, 1000).find(), make_turns(8, 2048, 30).find()
    assert few.paced_s == pytest.approx(RATIO * 0.0208, rel=0.01)
    assert many.paced_s > 2 * RATIO * 0.0208


def test_long_prompt_alone_passes_the_stages_in_parts() -> None:
    one = PacedTurns([STAGE], 0.0, (), 1, (2 * MOST_STEP_TOKENS, 10)).measure()
    two = PacedTurns([STAGE, STAGE], 0.0, (), 1, (2 * MOST_STEP_TOKENS, 10)).measure()
    part_s = MOST_STEP_TOKENS * 1e-4
    assert one.ttft_s == pytest.approx(2 * part_s)
    assert 2 * part_s < two.ttft_s < 2.2 * part_s, "in more than two parts"
    slow = PacedTurns([STAGE, STAGE], 0.0, (1e-3,), 1, (2 * MOST_STEP_TOKENS, 10)).measure()
    assert slow.ttft_s > 2 * MOST_STEP_TOKENS * 1e-3, "its link carries all of it"


def test_lone_prompt_is_on_several_stages_at_once() -> None:
    """Eight laptops with a model of 70B, each of which takes a second to read its layers."""
    laptop = StageStep(0.047, 0.047, 1.0, 0.0, 0.0, (), 0.0)
    one, eight = (PacedTurns([laptop] * count, 0.0, (), 1, (512, 10)).measure() for count in (1, 8))
    assert one.ttft_s == pytest.approx(512 * 0.047)
    assert eight.ttft_s < 50 < 8 * one.ttft_s / 3
    reading = laptop._replace(prompt_s=1e-6, decode_s=0.0)
    assert PacedTurns([reading] * 8, 0.0, (), 1, (512, 10)).measure().ttft_s == pytest.approx(8.0)


@pytest.mark.parametrize("requests", [8, 20, 64])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_steps_have_as_many_prompt_tokens_as_the_ratio_allows(requests: int, stages: int) -> None:
    turns = PacedTurns([STAGE] * stages, 0.01, (1e-6,), requests, (512, 2000)).find()
    all_s = inf
    for groups in count_groups(stages, requests):
        step_s = STAGE.measure(requests / groups, 0.0)
        all_s = min(all_s, max(stages * step_s + 0.01 + requests / groups * 1e-6, groups * step_s))
    assert turns.paced_s == pytest.approx(RATIO * all_s, rel=NEARLY)


def test_turns_of_which_none_is_as_long_as_the_ratio_allows_are_near_it() -> None:
    reads, computes = (
        STAGE._replace(decode_s=0.0, prompt_s=prompt_s, read_s=read_s, row_s=0.0)
        for prompt_s, read_s in ((1.5e-5, 0.0835), (2.33e-4, 5.6e-6))
    )
    last = STAGE._replace(decode_s=0.0, prompt_s=3.4e-7, read_s=0.0156, row_s=0.0)
    turns = PacedTurns([reads, computes, last], 0.0, (), 3, (100_000, 2000)).find()
    all_s = 3 * 0.0835
    assert turns.paced_s == pytest.approx(RATIO * all_s, rel=0.06)


@given(st.integers(1, 64), st.integers(1, 10_000), st.integers(0, 2000), st.integers(1, 5), st.floats(1e-6, 1e-2))
def test_times_are_consistent(requests: int, prompt: int, decodes: int, stages: int, token_s: float) -> None:
    stage = STAGE._replace(prompt_s=token_s, decode_s=token_s / 2)
    times = PacedTurns([stage] * stages, 0.01, (1e-6,), requests, (prompt, decodes)).measure()
    assert times.ttft_s > 0
    assert times.ttft_s <= times.request_s * (1 + 1e-9) or requests > 1
    computed_s = prompt * token_s + decodes * token_s / 2
    assert times.request_s >= requests * computed_s * (1 - 1e-9)
    assert max(times.stage_s) * requests <= times.request_s * (1 + 1e-9)
    assert times.request_s >= decodes * stage.measure(1.0, 0.0)


def make_case(seed: int) -> tuple[CostModel, tuple[int, ...], tuple[int, ...], int]:
    """Return a random pipeline of unequal nodes, and a number of requests."""
    random = Random(seed)
    num_stages = random.choice([1, 1, 2, 3])
    nodes = tuple(
        make_node(f"n{rank}", 1000, random.choice([10, 20, 40]), random.choice([100, 200]))
        for rank in range(num_stages)
    )
    model = make_model(6, kv=2**15)
    if random.random() < 0.3:
        layer = dataclasses.replace(model.layers[0], read=GB // 4, experts=3 * GB // 4, num_experts=16)
        model = ModelDemand(layers=(dataclasses.replace(layer, num_active_experts=2),) * 6, hidden=8192)
    link = LinkProfile(ends=("", ""), round_trip_s=random.choice([0.0, 0.02]), bandwidth=1e9)
    goal = ServingGoal(prompt_tokens=random.choice([64, 512]), output_tokens=random.choice([32, 128]))
    problem = PlacementProblem(cluster=ClusterProfile(nodes=nodes, default_link=link), model=model, goal=goal)
    cuts = (0, *sorted(random.sample(range(1, 6), num_stages - 1)), 6)
    return CostModel(problem), tuple(range(num_stages)), cuts, random.choice([2, 3, 6, 12])


def run_users(
    costs: CostModel, order: tuple[int, ...], cuts: tuple[int, ...], num_users: int
) -> tuple[Measured, Measured]:
    """Return the predicted speeds of users, and those of the head that serves, in virtual time."""
    cost = costs.measure_pipeline(order, cuts, num_users)
    predicted = Measured(cost.tokens_per_s, cost.ttft_s, cost.token_s)
    pipeline = ExactPipeline(PipelineModel(costs, order, cuts), 4096)
    return predicted, measure_users(pipeline, costs.goal, num_users, 6 * cost.request_s)


def test_predicted_speeds_are_those_of_the_head_that_serves() -> None:
    pairs = [run_users(*make_case(seed)) for seed in range(16)]
    errors = {
        name: sorted(abs(getattr(old, name) / getattr(new, name) - 1) for old, new in pairs)
        for name in Measured._fields
    }
    assert median(errors["tokens_per_s"]) < 0.03
    assert median(errors["token_s"]) < 0.03
    assert median(errors["ttft_s"]) < 0.15
    assert errors["tokens_per_s"][-5] < 0.1


@pytest.mark.parametrize(("num_stages", "num_users"), [(2, 2), (2, 3), (3, 3), (3, 4)])
def test_as_many_requests_as_stages_and_one_more_are_predicted(num_stages: int, num_users: int) -> None:
    nodes = tuple(make_node(f"n{rank}", 1000, 20, 200) for rank in range(num_stages))
    goal = ServingGoal(prompt_tokens=64, output_tokens=64)
    link = LinkProfile(ends=("", ""), round_trip_s=0.0, bandwidth=1e9)
    cluster = ClusterProfile(nodes=nodes, default_link=link)
    costs = CostModel(PlacementProblem(cluster=cluster, model=make_model(6, kv=2**15), goal=goal))
    cuts = tuple(range(0, 7, 6 // num_stages))
    predicted, measured = run_users(costs, tuple(range(num_stages)), cuts, num_users)
    assert predicted.tokens_per_s == pytest.approx(measured.tokens_per_s, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_times_are_the_golden_ones(seed: int) -> None:
    """They change only where somebody means them to."""
    assert predict_turns(seed) == json.loads(GOLDEN.read_text(encoding="utf-8"))[seed]


@pytest.mark.parametrize(("read_s", "ways_s", "groups"), [(0.02, 0.001, 2), (0.02, 0.1, 3), (1e-5, 0.001, 3)])
def test_a_further_step_has_to_hide_more_of_the_links_than_it_reads(read_s: float, ways_s: float, groups: int) -> None:
    stage = STAGE._replace(read_s=read_s, fixed_s=0.0)
    assert PacedTurns([stage] * 2, ways_s, (), 24, (64, 1000)).find().groups == pytest.approx(groups, rel=0.01)
