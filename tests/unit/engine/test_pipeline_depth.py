from __future__ import annotations

from parallax_core.engine.pipeline_depth import MOST, PipelineDepth


def test_pipeline_begins_with_a_step_for_each_stage_and_one_on_its_way() -> None:
    assert [PipelineDepth(count).most for count in (1, 2, 3)] == [1, 3, 4]


def test_single_stage_has_the_steps_it_takes_ahead_in_flight() -> None:
    assert [PipelineDepth(1, ahead).most for ahead in (0, 1, 3)] == [1, 2, 4]


def test_long_links_are_filled() -> None:
    depth = PipelineDepth(3)
    depth.note(round_trip_s=0.260, slowest_s=0.020)
    assert depth.most == 13


def test_least_round_trip_counts_since_others_have_waited() -> None:
    depth = PipelineDepth(3)
    for round_trip_s in (0.5, 0.12, 0.9):
        depth.note(round_trip_s, 0.020)
    assert depth.most == 6


def test_stage_that_is_slow_once_changes_nothing() -> None:
    depth = PipelineDepth(3)
    for slowest_s in (0.020, 0.200, 0.020):
        depth.note(0.260, slowest_s)
    assert depth.most == 13


def test_old_round_trips_are_forgotten() -> None:
    depth = PipelineDepth(3)
    depth.note(0.1, 0.020)
    for _ in range(40):
        depth.note(0.2, 0.020)
    assert depth.most == 10


def test_steps_in_flight_are_bounded_and_a_single_stage_has_one() -> None:
    far, single = PipelineDepth(2), PipelineDepth(1)
    for depth in (far, single):
        depth.note(10.0, 0.001)
    assert (far.most, single.most) == (MOST, 1)


def test_stage_that_says_nothing_of_its_time_changes_nothing() -> None:
    depth = PipelineDepth(3)
    depth.note(1.0, 0.0)
    assert depth.most == 4
