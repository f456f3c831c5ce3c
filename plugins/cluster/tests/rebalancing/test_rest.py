from __future__ import annotations

from parallax_cluster.rebalancing.rest import MoveRest, MoveRules

RULES = MoveRules(rest_s=30.0, calm_s=600.0)


def measure_rest(rest: MoveRest, now: float) -> float:
    """Return the seconds from ``now`` on in which layers do not move."""
    return next(seconds for seconds in range(5000) if not rest.explain(now + seconds))


def test_layers_may_move_before_any_has() -> None:
    assert MoveRest(RULES).explain(5.0) == ""


def test_rest_doubles_with_each_move_up_to_a_bound() -> None:
    rest, now, found = MoveRest(RULES), 100.0, []
    for _ in range(8):
        rest.note_move(now)
        found.append(measure_rest(rest, now))
        now += found[-1]
    assert found == [30, 60, 120, 240, 480, 960, 960, 960]


def test_moves_for_lost_nodes_in_the_rest_prolong_it() -> None:
    rest = MoveRest(RULES)
    for now in (100.0, 105.0, 110.0):
        rest.note_move(now)
    assert measure_rest(rest, 110.0) == 120
    assert rest.explain(120.0) == "layers have moved, and rest for 110 s"


def test_moves_are_forgotten_one_by_one_after_calm() -> None:
    rest = MoveRest(RULES)
    for now in (100.0, 130.0, 190.0):
        rest.note_move(now)
    rest.note_move(310.0 + 600.0)  # one of three is forgotten
    assert measure_rest(rest, 910.0) == 120
    rest.note_move(1e6)
    assert measure_rest(rest, 1e6) == 30


def test_whoever_asks_ends_the_rest() -> None:
    rest = MoveRest(RULES)
    rest.note_move(100.0)
    rest.note_move(130.0)
    rest.end()
    assert not rest.explain(131.0)
    rest.note_move(140.0)
    assert measure_rest(rest, 140.0) == 30


def test_held_layers_never_move_for_a_better_plan() -> None:
    rest = MoveRest(MoveRules(holds=True))
    assert "--hold-moves" in rest.explain(0.0)
    assert "--hold-moves" in rest.explain(1e9)


def test_held_layers_move_once_when_somebody_asks() -> None:
    rest = MoveRest(MoveRules(holds=True))
    rest.end()
    assert rest.explain(5.0) == ""
    rest.note_plan()
    assert "--hold-moves" in rest.explain(5.0)
