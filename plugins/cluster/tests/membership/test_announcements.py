from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.membership.announcement import MOST_LIFETIME_S, SKEW_S, Announcement, Body
from parallax_cluster.membership.announcements import FORGET_S, Announcements

TOPICS = [letter * 16 for letter in (b"a", b"b")]


def make(sequence: int, *, content: bytes = b"c", expires: int = 100, **place: Any) -> Announcement:
    """Return an announcement at a place: signer, number and topic."""
    found = {"signer": b"s", "number": 1, "topic": TOPICS[0], **place}
    return Announcement(b"", found["signer"], Body(found["topic"], found["number"], sequence, expires, content))


made = st.builds(
    make,
    st.integers(0, 4),
    signer=st.sampled_from([b"s", b"t"]),
    number=st.integers(1, 2),
    topic=st.sampled_from(TOPICS),
    expires=st.integers(90, 120),
    content=st.sampled_from([b"c", b"d", b""]),
)
events = st.lists(st.tuples(made, st.sampled_from("xyz"), st.integers(0, 3)), max_size=40)


@given(events)
def test_newest_of_each_place_is_listed_and_no_older_one_comes_back(
    given_events: list[tuple[Announcement, str, int]],
) -> None:
    kept, now = Announcements(), 100.0
    newest: dict[object, Announcement] = {}
    known: dict[object, Announcement] = {}
    for announcement, bringer, seconds in given_events:
        now += seconds
        newest = {place: each for place, each in newest.items() if each.is_current(now)}
        before = newest.get(announcement.place)
        is_news = announcement.is_current(now) and (before is None or before.body.sequence < announcement.body.sequence)
        last = known.get(announcement.place)
        if last is before or last is None or not last.is_current(now - FORGET_S):  # else it may still stand, expired
            assert kept.note(announcement, bringer, now) == is_news
        elif not kept.note(announcement, bringer, now):
            continue
        if is_news:
            newest[announcement.place] = known[announcement.place] = announcement
        for topic in TOPICS:
            wanted = [each for place, each in newest.items() if each.body.topic == topic and each.body.content]
            assert kept.list_current(topic, now) == sorted(wanted, key=lambda each: each.place)


def test_withdrawn_one_does_not_come_back_by_replay() -> None:
    kept = Announcements()
    first = make(1)
    assert kept.note(first, "m", 90.0)
    assert kept.note(make(2, content=b""), "m", 90.0)
    assert kept.list_current(TOPICS[0], 90.0) == []
    assert not kept.note(first, "m", 91.0)
    assert not kept.note(make(2, content=b"again"), "m", 91.0)
    assert kept.list_current(TOPICS[0], 91.0) == []


def test_expired_ones_and_those_that_would_last_too_long_are_not_kept() -> None:
    kept = Announcements()
    assert not kept.note(make(1, expires=100), "m", 100 + SKEW_S)
    assert not kept.note(make(1, expires=300), "m", 300 - MOST_LIFETIME_S - SKEW_S - 1)
    assert kept.note(make(1, expires=100), "m", 99.0)
    assert len(kept) == 1
    kept.note(make(9, signer=b"t", expires=100), "m", 100 + SKEW_S)
    assert len(kept) == 0


def test_one_machine_fills_its_share_only_and_a_full_one_keeps_what_it_has() -> None:
    kept = Announcements(most=5, most_of_one=3)
    assert [kept.note(make(1, number=number), "greedy", 90.0) for number in range(5)] == [True] * 3 + [False] * 2
    assert kept.note(make(2, number=0), "greedy", 90.0), "a later one takes no further room"
    assert [kept.note(make(1, number=number), "late", 90.0) for number in (10, 11, 12)] == [True, True, False]
    assert len(kept) == 5
    assert kept.note(make(3, number=0), "another", 90.0)
    assert not kept.note(make(1, number=5), "greedy", 90.0), "it still counts for who brought it first"
    assert kept.note(make(1, number=20, expires=200), "greedy", 150.0), "there is room once others have expired"


def test_each_machine_and_all_together_have_their_share() -> None:
    kept = Announcements()
    found = [kept.note(make(1, number=number), f"m{number // 1100}", 90.0) for number in range(11_100)]
    assert found[:1100] == [True] * 1024 + [False] * 76
    assert (sum(found), len(kept)) == (10_000, 10_000)
