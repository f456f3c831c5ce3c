"""Meters of plugins are told of requests and errors, and one that fails affects no answer."""

from __future__ import annotations

import logging

import pytest

from parallax_core.contracts.engine import Delta, Finish
from parallax_core.server.meters import Meters
from tests.unit.server.letters import Site

END = Delta(index=0, ended="stop", finish=Finish(reason="stop", prompt_tokens=1, output_tokens=1))


class Notes:
    """A meter, and that of each of its requests, which writes down what it is told."""

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[str] = []
        self.fails_at = fails_at

    def _write(self, word: str) -> None:
        self.told.append(word)
        if word == self.fails_at:
            raise LookupError(word)

    def begin(self, arrived: float, parent: str) -> Notes:
        self._write(f"begin {arrived:g} {parent}")
        return self

    def count_error(self, kind: str) -> None:
        self._write(kind)

    def note(self, delta: Delta) -> None:
        self._write("end" if delta.finish else "delta")

    def abandon(self) -> None:
        self._write("abandon")


def make(*all_meters: Notes) -> Meters:
    meters = Meters()
    meters.all += all_meters
    return meters


def test_request_that_has_ended_is_not_abandoned_and_is_over_once() -> None:
    notes, over = Notes(), list[int]()
    request = make(notes).begin(2.0, "p", lambda: over.append(1))
    request.note(Delta(index=0, tokens=(3,)))
    request.note(END)
    request.abandon()
    assert (notes.told, over) == (["begin 2 p", "delta", "end"], [1])


def test_request_that_a_client_leaves_is_abandoned_once() -> None:
    notes, over = Notes(), list[int]()
    request = make(notes).begin(0.0, "", lambda: over.append(1))
    request.abandon()
    request.abandon()
    assert (notes.told[1:], over) == (["abandon"], [1])


def test_error_is_counted_by_its_type() -> None:
    notes = Notes()
    make(notes).count_error(404)
    make(notes).count_error(500)
    assert notes.told == ["not_found_error", "server_error"]


@pytest.mark.parametrize("fault", ["begin 0 ", "delta", "end", "abandon", "server_error"])
def test_meter_that_fails_is_logged_once_and_the_others_go_on(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    bad, good, over = Notes(fault), Notes(), list[int]()
    meters = make(bad, good)
    with caplog.at_level(logging.ERROR):
        first, second = (meters.begin(0.0, "", lambda: over.append(1)) for _ in range(2))
        for each in (Delta(index=0), END):
            first.note(each)
        second.abandon()
        meters.count_error(500)
        meters.count_error(500)
    assert bad.told.count(fault) == 1
    assert bad.told[-1] == fault
    assert good.told == [*["begin 0 "] * 2, "delta", "end", "abandon", *["server_error"] * 2]
    assert over == [1, 1]
    assert [record.getMessage() for record in caplog.records] == ["Notes failed, and measures no more"]


def test_meter_hears_of_the_requests_and_errors_of_a_server() -> None:
    notes = Notes()
    with Site() as site:
        site.models.meters.all.append(notes)
        site.ask(max_tokens=3)
        site.client.get("/nowhere")
    assert notes.told[0].startswith("begin ")
    assert notes.told[-2:] == ["end", "not_found_error"]
    assert set(notes.told[1:-2]) == {"delta"}
