from __future__ import annotations

from parallax_cluster.membership.announcement import LIFETIME_S, Announcement, Body
from parallax_cluster.node.membership.skew_watch import MOST_PLACES, SkewWatch

NOW = 10_000.0


def make(sequence: int, age_s: float = 0.0, number: int = 1) -> Announcement:
    return Announcement(b"", b"signer", Body(bytes(16), number, sequence, int(NOW - age_s + LIFETIME_S), b"x"))


def test_signer_that_goes_on_with_another_time_is_noticed_once() -> None:
    watch = SkewWatch()
    assert [watch.is_shown_by(make(sequence, 300), NOW) for sequence in (1, 1, 2, 3)] == [False, False, True, False]


def test_announcement_that_is_left_of_a_node_that_is_gone_shows_nothing() -> None:
    watch = SkewWatch()
    assert not any(watch.is_shown_by(make(1, 50, number), NOW) for number in range(2 * MOST_PLACES))


def test_announcements_that_are_current_show_nothing() -> None:
    watch = SkewWatch()
    assert not any(watch.is_shown_by(make(sequence, age), NOW) for sequence, age in ((1, 0), (2, 20), (3, -20)))
