from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from parallax_cluster.deploy import recorder
from parallax_cluster.deploy.recorder import NOTHING, ClusterFacts, find_events, record
from parallax_cluster.node.membership.event_store import EventStore
from tests.unit.node.cluster import until

BEFORE = ClusterFacts(
    nodes=frozenset({"a/1", "b/1"}),
    drained=frozenset({"b"}),
    plans={"toy": ("replica 0: layers 0-3 on a/1", "it began")},
    states={"toy": ("ready", "")},
)


def list_events(before: ClusterFacts, now: ClusterFacts) -> list[tuple[str, str, str]]:
    return [(each.kind, each.subject, each.text) for each in find_events(before, now, 5.0)]


def test_what_has_changed_is_an_event() -> None:
    assert list_events(BEFORE, BEFORE) == []
    now = ClusterFacts(
        nodes=frozenset({"b/1", "c/1"}),
        drained=frozenset({"c"}),
        plans={"toy": ("replica 0: layers 0-3 on b/1", "node 'a/1' can no longer be used"), "new": ("", "")},
        states={"toy": ("starting", "a stage was lost")},
    )
    assert list_events(BEFORE, now) == [
        ("node_joined", "c/1", ""),
        ("node_left", "a/1", ""),
        ("node_drained", "c", ""),
        ("node_resumed", "b", ""),
        ("plan", "toy", "replica 0: layers 0-3 on b/1 (node 'a/1' can no longer be used)"),
        ("status", "toy", "starting: a stage was lost"),
    ]


def test_reason_alone_is_no_event() -> None:
    facts = ClusterFacts(plans={"toy": ("here", "one")}, states={"toy": ("starting", "1 of 9")})
    later = ClusterFacts(plans={"toy": ("here", "two")}, states={"toy": ("starting", "2 of 9")})
    assert list_events(facts, later) == []
    assert [kind for kind, *_ in list_events(NOTHING, facts)] == ["plan", "status"]


async def test_events_are_kept_until_the_server_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "LOOK_S", 0.01)
    store, looks = EventStore(tmp_path / "events.db"), [BEFORE, BEFORE, ClusterFacts(nodes=BEFORE.nodes)]
    recording = asyncio.create_task(record(store, lambda: looks.pop(0) if len(looks) > 1 else looks[0]))
    await until(lambda: [each.kind for each in store.find(0, 10)][-1:] == ["node_resumed"])
    recording.cancel()
    await asyncio.gather(recording, return_exceptions=True)
    kinds = [each.kind for each in store.find(0, 10)]
    assert kinds == ["node_joined", "node_joined", "node_drained", "plan", "status", "node_resumed"]


async def test_file_that_cannot_be_written_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "LOOK_S", 0.0)
    (tmp_path / "events.db").write_text("no database, and long enough to be read as one")
    looks = 0

    def look() -> ClusterFacts:
        nonlocal looks
        looks += 1
        return ClusterFacts(nodes=frozenset({f"a/{looks}"}))

    recording = asyncio.create_task(record(EventStore(tmp_path / "events.db"), look))
    await until(lambda: looks > 3)
    assert not recording.done()
    recording.cancel()
    await asyncio.gather(recording, return_exceptions=True)
    assert caplog.text.count("what happens is in the log only") == 1
