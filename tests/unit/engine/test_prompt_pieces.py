from __future__ import annotations

import pytest

from parallax_core.engine.prompt_pieces import LEAST_PIECE, Pace, choose_piece, predict_step
from parallax_core.engine.step_cost import StepSize
from parallax_core.testing.toy import Toy
from tests.unit.engine.replica import Replica, open_stages
from tests.unit.engine.timed import TimedPipeline, make_law

READS = [(1, 0.02), (64, 0.02), (512, 0.0201)]
"""A stage that only reads its weights, whatever the tokens."""
COMPUTES = [(1, 0.02), (64, 0.64), (512, 5.12)]


def test_prompt_is_cut_where_stages_compute_and_not_where_they_read() -> None:
    assert choose_piece([READS, READS], 512, 2048, Pace(0.0, 3)) == 512
    assert choose_piece([COMPUTES] * 4, 512, 2048, Pace(0.0, 5)) <= 64
    assert choose_piece([COMPUTES] * 4, 5000, 2048, Pace(0.0, 5)) <= 2048


def test_prompt_is_cut_into_as_many_pieces_as_stages_before_any_is_measured() -> None:
    assert choose_piece([[], []], 512, 2048, Pace(0.0, 3)) == 256
    assert choose_piece([COMPUTES, [(1, 0.02)]], 512, 2048, Pace(0.0, 3)) == 256
    assert choose_piece([[]] * 8, 100, 2048, Pace(0.0, 9)) == LEAST_PIECE


def test_prompt_is_whole_again_if_its_pieces_took_as_long() -> None:
    experts = [(1, 0.01), (64, 0.095), (512, 0.1)]
    assert choose_piece([experts] * 2, 512, 2048, Pace(0.0, 3)) == 512


def test_pieces_do_not_wait_for_those_that_are_on_slow_links() -> None:
    assert choose_piece([COMPUTES] * 4, 64, 2048, Pace(0.0, 5)) < 64
    assert choose_piece([[(1, 0.01), (64, 0.02)]] * 4, 64, 2048, Pace(2.0, 5)) >= 16, "at most five are on their way"


KNOWN = [(1, 0.02), (64, 0.1), (512, 0.8)]


@pytest.mark.parametrize(
    ("num_tokens", "seconds"),
    [
        (1, 0.02),
        (64, 0.1),
        (512, 0.8),
        (20, 0.02 + 0.08 * 19 / 63),  # on the line between two
        (32, 0.05),  # in proportion to one of twice the tokens: it may be no more
        (300, 0.8 * 300 / 512),
        (256, 0.4),
        (200, 0.1 + 0.7 * 136 / 448),
        (1024, 1.6),
        (2048, 3.2),
    ],
)
def test_step_is_predicted_by_those_beside_it(num_tokens: int, seconds: float) -> None:
    assert predict_step(KNOWN, num_tokens) == pytest.approx(seconds, rel=0.01)


def test_step_is_predicted_by_one_in_proportion() -> None:
    assert [predict_step([(64, 2.0)], num) for num in (16, 64, 128)] == [2.0, 2.0, 4.0]


def test_size_that_may_be_best_is_tried_and_left_if_it_is_not() -> None:
    """Steps read all weights up to 100 tokens, and compute beyond."""
    sizes, stages = list[int](), [[(1, 8.0), (256, 20.5)]] * 2
    for _ in range(6):
        sizes.append(size := choose_piece(stages, 512, 2048, Pace(0.0, 3)))
        known = {**dict(stages[0]), size: max(8.0, size * 0.08)}
        stages = [sorted(known.items())] * 2
    assert 80 <= sizes[-1] <= 128
    assert sizes[-1] == sizes[-2]


LAPTOPS = make_law(fixed=1.0, decode_s=0.0, prompt_s=0.047)


def test_lone_prompt_is_on_all_stages_at_once() -> None:
    """Eight laptops with a model of 70B: the first token of 512 tokens would take 8 * (1 + 512 * 0.047) seconds."""
    pipeline = TimedPipeline([LAPTOPS] * 8)
    whole_s = 8 * LAPTOPS(StepSize(num_prompt=512))
    for _ in range(8):
        request = pipeline.ask(512, 20)
        pipeline.run()
        ttft_s = pipeline.times[request][0] - pipeline.arrived[request]
        assert ttft_s < 0.4 * whole_s
    assert ttft_s < 0.3 * whole_s
    assert pipeline.gaps(request)[-1] == pytest.approx(8.0), "its own answer is not held up"


def test_prompts_beside_others_are_not_cut() -> None:
    alone, both = TimedPipeline([LAPTOPS] * 3), TimedPipeline([LAPTOPS] * 3)
    for pipeline, number in ((alone, 1), (both, 2)):
        for _ in range(number):
            pipeline.ask(200, 2)
        pipeline.run()
    assert alone.steps[0][1].num_prompt == 67
    assert both.steps[0][1].num_prompt == 400


def test_prompt_that_others_join_is_cut_no_further() -> None:
    pipeline = TimedPipeline([LAPTOPS] * 4)
    first = pipeline.ask(400, 2)
    pipeline.advance()
    second = pipeline.ask(90, 2)
    pipeline.run()
    assert all(len(pipeline.times[each]) == 2 for each in (first, second))
    assert pipeline.steps[-1][1].num_decodes == 1


def test_answer_of_a_prompt_in_pieces_is_that_of_the_whole() -> None:
    toy = Toy(("full", "full", "full"))
    replica = Replica(*open_stages(toy, 3, num_pages=400, context=300, max_batch_tokens=256))
    tokens = [number % 90 for number in range(200)]
    replica.ask(tokens, 4)
    replica.run()
    rows = [len(row.tokens) for batch in replica.stage.batches for row in batch.rows]
    assert rows[:3] == [67, 67, 66]
    again = replica.ask([*tokens[:150], 7, 8, 9], 4)
    replica.run()
    assert replica.states == {}
    assert replica.deltas[again][-1].finish is not None
    replica.check_tokens()
