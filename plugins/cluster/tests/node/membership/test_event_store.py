from __future__ import annotations

from pathlib import Path

import pytest

from parallax_cluster.node.membership import event_store
from parallax_cluster.node.membership.event_store import MOST_TEXT, Event, EventStore
from parallax_core.base.errors import ParallaxError


def make_event(at: float, text: str = "") -> Event:
    return Event(time=at, kind="plan", subject="toy", text=text)


def test_events_are_found_again_by_their_time(tmp_path: Path) -> None:
    path = tmp_path / "cluster/events.db"
    EventStore(path).add([make_event(1), make_event(2, "layers")])
    EventStore(path).add([make_event(3)])
    assert EventStore(path).find(2, 10) == [make_event(2, "layers"), make_event(3)]
    assert EventStore(path).find(0, 2) == [make_event(2, "layers"), make_event(3)]
    assert EventStore(path).find(4, 10) == []
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_latest_events_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_store, "MOST_EVENTS", 5)
    store = EventStore(tmp_path / "events.db")
    for at in range(12):
        store.add([make_event(at)])
    assert [each.time for each in store.find(0, 100)] == [7, 8, 9, 10, 11]
    store.add([make_event(20, "x" * (MOST_TEXT + 1))])
    assert len(store.find(20, 1)[0].text) == MOST_TEXT


def test_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "events.db").write_text("no database, and long enough to be read as one")
    with pytest.raises(ParallaxError, match=r"the events in .* cannot be used"):
        EventStore(tmp_path / "events.db").find(0, 1)
