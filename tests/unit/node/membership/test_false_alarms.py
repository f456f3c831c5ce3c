from __future__ import annotations

from parallax_core.node.membership.false_alarms import BACK_S, KEPT_S, FalseAlarms

NODE = ("mini/7", 7)


class Alarms(FalseAlarms):
    """With a clock that is set."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now)
        self.now = 100.0


def test_node_that_joins_for_the_first_time_is_granted_nothing_more() -> None:
    assert Alarms().note_join(NODE) == 0.0


def test_process_that_comes_back_is_granted_twice_the_silence_each_time() -> None:
    alarms, granted = Alarms(), []
    for silence_s in (0.85, 1.75, 0.9):
        alarms.note_end(NODE, silence_s)
        alarms.now += 2.0
        granted.append(alarms.note_join(NODE))
    assert granted == [1.7, 3.5, 3.5]


def test_node_whose_link_ended_otherwise_is_granted_nothing_more() -> None:
    alarms = Alarms()
    alarms.note_end(NODE, 0.0)
    assert alarms.note_join(NODE) == 0.0


def test_other_process_of_the_same_name_was_lost_indeed() -> None:
    alarms = Alarms()
    alarms.note_end(("local/0", 7), 0.85)
    assert alarms.note_join(("local/0", 8)) == 0.0


def test_node_that_is_away_for_long_was_lost_indeed() -> None:
    alarms = Alarms()
    alarms.note_end(NODE, 0.85)
    alarms.now += BACK_S
    assert alarms.note_join(NODE) == 0.0
    alarms.note_end(NODE, 0.85)
    alarms.now += BACK_S
    alarms.note_end(("other/1", 1), 0.85)
    assert list(alarms._silent) == [("other/1", 1)], "those that do not come back are forgotten"


def test_alarm_is_forgotten_after_a_while() -> None:
    alarms = Alarms()
    alarms.note_end(NODE, 0.85)
    alarms.note_join(NODE)
    alarms.now += KEPT_S - 1
    assert alarms.note_join(NODE) == 1.7
    alarms.now += 1
    assert alarms.note_join(NODE) == 0.0
