"""The record of requests has the latest ones, with their times, and nothing of their texts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

from parallax_core.api import Finish, Pause, Reason, RequestBegan, RequestEnded, RequestId, Timing
from parallax_core.api.deployment import RunningRequest
from parallax_observe import request_feed
from parallax_observe.request_feed import Progress, RequestsReply, follow, show_request
from parallax_observe.request_record import RECORD, RequestRecord
from tests.unit.server.letters import Site

TIMING = Timing(
    queued_s=1.0, prefill_s=2.0, decode_s=3.0, stages_s=(0.5, 0.25), hops_s=(0.1, 0.2), pauses=(Pause(1.5, 0.5),)
)


def begin(number: int, model: str = "toy") -> RequestBegan:
    return RequestBegan(at=100.0 + number, model=model, id=RequestId(f"r{number}"), prompt_tokens=7)


def end(number: int, model: str = "toy", reason: Reason = "stop", message: str = "") -> RequestEnded:
    finish = Finish(reason=reason, prompt_tokens=7, output_tokens=3, message=message, cached_tokens=4, timing=TIMING)
    at, name = 106.0 + number, RequestId(f"r{number}")
    return RequestEnded(at=at, model=model, id=name, finish=finish, first_token_s=3.0, duration_s=6.0)


def test_running_requests_come_first_and_the_latest_of_each() -> None:
    record = RequestRecord()
    for event in (begin(0), begin(1), begin(2), begin(3), end(1), end(0)):
        record.note(event)
    assert [each.id for each in record.list(10)] == ["r3", "r2", "r0", "r1"]
    assert [each.id for each in record.list(3)] == ["r3", "r2", "r0"]
    record.note(begin(4, "other"))
    assert [each.id for each in record.list(10, "other")] == ["r4"]


def test_only_so_many_are_kept_and_an_end_without_its_beginning_too() -> None:
    record = RequestRecord(most_ended=2, most_running=2)
    for number in range(4):
        record.note(begin(number))
    assert [each.id for each in record.list(10)] == ["r3", "r2"]
    for number in range(4):
        record.note(end(number))
    assert [each.id for each in record.list(10)] == ["r3", "r2"]
    assert all(each.ended and each.began == 100.0 + int(each.id[1:]) for each in record.list(10))


def test_ended_request_is_shown_with_the_parts_of_its_time() -> None:
    record = RequestRecord()
    record.note(end(0, reason="error", message="x" * 1000))
    shown = show_request(record.list(1)[0], 200.0, {})
    parts = {part.name: (part.start_seconds, part.seconds, part.is_sum) for part in shown.parts}
    assert parts["queue"] == (0.0, 1.0, False)
    assert parts["prefill"] == (1.0, 2.0, False)
    assert parts["decode"] == (3.0, 3.0, False)
    assert parts["recovery"] == (1.5, 0.5, False)
    assert parts["stage 1"] == (1.0, 0.25, True)
    assert parts["hop 0"] == (1.0, 0.1, True)
    assert (shown.state, shown.reason, shown.seconds, shown.first_token_seconds) == ("ended", "error", 6.0, 3.0)
    assert (shown.prompt_tokens, shown.cached_tokens, shown.output_tokens) == (7, 4, 3)
    assert shown.message == "x" * 300


def test_running_request_is_shown_with_its_time_until_now() -> None:
    record = RequestRecord()
    record.note(begin(0))
    shown = show_request(record.list(1)[0], 102.5, {})
    assert (shown.state, shown.seconds, shown.reason, shown.parts) == ("running", 2.5, None, [])


@pytest.mark.parametrize(
    ("told", "phase", "computed"),
    [
        ({}, None, 0),
        ({"toy": {}}, "queue", 0),
        ({"toy": {"r0": RunningRequest(RequestId("r0"), 4, 0)}}, "prefill", 4),
        ({"toy": {"r0": RunningRequest(RequestId("r0"), 7, 2)}}, "decode", 7),
    ],
)
def test_running_request_has_a_phase(told: Progress, phase: str | None, computed: int) -> None:
    record = RequestRecord()
    record.note(begin(0))
    shown = show_request(record.list(1)[0], 102.5, told)
    assert (shown.phase, shown.computed_tokens) == (phase, computed)
    assert shown.output_tokens == (2 if phase == "decode" else 0)


async def test_followers_get_what_is_new_or_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_feed, "LOOK_S", 0.0)
    record, running = RequestRecord(), dict[str, RunningRequest]()

    def show() -> RequestsReply:
        data = [show_request(each, time.time(), {"toy": running}) for each in record.list(10)]
        return RequestsReply("list", time.time(), data)

    events = follow(show)
    assert read(await anext(events)) == []
    assert not (await asyncio.wait([following := asyncio.ensure_future(anext(events))], timeout=0.01))[0]
    record.note(begin(0))
    record.note(begin(1))
    assert read(await following) == [("r1", "queue", 0), ("r0", "queue", 0)]
    running["r0"] = RunningRequest(RequestId("r0"), 7, 2)
    assert read(await anext(events)) == [("r0", "decode", 2)]
    record.note(end(0))
    assert read(await anext(events)) == [("r0", None, 3)]


def read(event: bytes) -> list[tuple[str, str | None, int]]:
    name, data = event.decode().strip().split("\n")
    assert name == "event: requests"
    found = json.loads(data.removeprefix("data: "))["data"]
    return [(each["id"], each["phase"], each["output_tokens"]) for each in found]


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def test_route_lists_requests_of_a_model(site: Site) -> None:
    RECORD.note(end(77, "model-of-this-test"))
    reply = site.client.get("/v1/requests?model=model-of-this-test").json()
    assert [each["id"] for each in reply["data"]] == ["r77"]
    assert reply["object"] == "list"
    assert reply["now"] > reply["data"][0]["began"]
    assert site.client.get("/v1/requests?limit=0").status_code == 400
