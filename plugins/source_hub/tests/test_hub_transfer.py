"""Transfers from the hub that break off, go on, and end."""

from __future__ import annotations

import pytest

from parallax_core.api import ParallaxError, Unit, silent
from parallax_source_hub import model_download
from parallax_source_hub.source import HubSource
from tests.support.fakehub import FakeHub, Fault
from tests.support.tinyhub import MODEL, NAME, WEIGHTS, contents


def test_a_cut_transfer_goes_on_where_it_stopped(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults.append(Fault("model.safetensors", times=1))  # the redirect, which is not cut
    hub.faults.append(Fault("model.safetensors", cut_after=100_000))
    assert contents(source.fetch(NAME, silent).path) == MODEL
    first, second = hub.storage_requests()
    assert "range" not in first.headers
    assert second.headers["range"] == "bytes=100000-299999"


def test_a_server_without_ranges_starts_the_file_over(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=100_000)]
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", ignore_range=True)]
    assert contents(source.fetch(NAME, silent).path) == MODEL


def test_a_server_need_not_say_how_large_the_file_of_a_range_is(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=100_000)]
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", stated_size="*")]
    assert contents(source.fetch(NAME, silent).path) == MODEL


def test_a_range_of_a_file_of_another_size_is_refused(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=100_000)]
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", stated_size="300001")]
    with pytest.raises(ParallaxError, match="has 300001 bytes on the server, but is listed with 300000"):
        source.fetch(NAME, silent)


@pytest.mark.parametrize(("quiet_bytes", "is_told"), [(len(WEIGHTS), False), (len(WEIGHTS) - 1, True)])
def test_checks_are_told_only_where_they_take_long(
    hub: FakeHub, source: HubSource, monkeypatch: pytest.MonkeyPatch, quiet_bytes: int, *, is_told: bool
) -> None:
    monkeypatch.setattr(model_download, "QUIET_BYTES", quiet_bytes)
    hub.add(NAME, MODEL)
    tasks = set()

    def report(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        del done, total, unit
        tasks.add(task)

    source.fetch(NAME, report)
    assert (f"check {NAME}" in tasks) == is_told


def test_transfers_are_tried_again_until_the_pauses_are_used_up(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults.append(Fault("/tokenizer.json", status=503, times=2))
    assert contents(source.fetch(NAME, silent).path) == MODEL
    assert hub.fetched().count("tokenizer.json") == 3
    source.remove(NAME)
    hub.faults.append(Fault("/tokenizer.json", status=500, times=9))
    with pytest.raises(ParallaxError, match=r"answers HTTP 500 for tiny/model"):
        source.fetch(NAME, silent)
    assert hub.fetched().count("tokenizer.json") == 6


def test_transfers_that_get_on_are_never_given_up(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    for _ in range(5):
        hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=50_000)]
    assert contents(source.fetch(NAME, silent).path) == MODEL
    assert [asked.headers.get("range", "bytes=0-299999") for asked in hub.storage_requests()] == [
        f"bytes={start}-299999" for start in range(0, 300_000, 50_000)
    ]


def test_a_second_fetch_keeps_what_the_first_brought(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=50_000)]
    hub.faults.append(Fault("model.safetensors", status=404))
    with pytest.raises(ParallaxError, match="404"):
        source.fetch(NAME, silent)
    assert source.stored() == []
    hub.requests.clear()
    assert contents(source.fetch(NAME, silent).path) == MODEL
    assert hub.fetched() == ["model.safetensors"]
    assert hub.storage_requests()[0].headers["range"] == "bytes=50000-299999"


MOVED = MODEL | {"config.json": b'{"new": 1}', "model.safetensors": WEIGHTS[::-1]}


def test_what_was_begun_is_finished_as_it_was_wherever_its_branch_points(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=50_000)]
    hub.faults.append(Fault("model.safetensors", status=404))
    with pytest.raises(ParallaxError):
        source.fetch(NAME, silent)
    hub.add(NAME, MOVED)
    assert contents(source.fetch(NAME, silent).path) == MODEL


def test_without_weights_the_commit_that_a_branch_points_to_is_fetched(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults.append(Fault("/tokenizer.json", status=404))
    with pytest.raises(ParallaxError, match="404"):
        source.fetch(NAME, silent)
    hub.add(NAME, MOVED)
    assert contents(source.fetch(NAME, silent).path) == MOVED


def test_a_corrupt_file_is_refused_and_fetched_afresh(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    for name, faults in {"/tokenizer.json": 0, "model.safetensors": 1}.items():
        hub.faults += [Fault(name)] * faults + [Fault(name, corrupt=True)]
        with pytest.raises(ParallaxError, match=r"arrived damaged: its checksum differs") as caught:
            source.fetch(NAME, silent)
        assert "again" in caught.value.hint
        assert source.stored() == []
    assert contents(source.fetch(NAME, silent).path) == MODEL


@pytest.mark.parametrize("claimed", [200_000, 400_000])
def test_a_file_of_another_size_is_refused(hub: FakeHub, source: HubSource, claimed: int) -> None:
    hub.add(NAME, MODEL)
    hub.repos[NAME].sizes["model.safetensors"] = claimed

    def report(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        assert total is not None, (task, unit)
        assert done <= total

    with pytest.raises(ParallaxError, match=f"300000 bytes on the server, but is listed with {claimed}"):
        source.fetch(NAME, report)
    assert source.stored() == []
    hub.repos[NAME].sizes.clear()
    assert contents(source.fetch(NAME, silent).path) == MODEL
