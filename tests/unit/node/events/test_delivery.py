from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from parallax_core.api import EngineReady, Event
from parallax_core.node.events.delivery import EventBus
from parallax_core.plugins.discovery import PluginRecord


def make_event_bus(capacity: int = 8, **observers: Callable[[Event], Any]) -> EventBus:
    return EventBus(
        [
            (PluginRecord(name=name, distribution=name, version="1", module=name, state="loaded"), observe)
            for name, observe in observers.items()
        ],
        capacity,
    )


def make_event(number: int) -> Event:
    return EngineReady(at=float(number), model="m", load_s=0.0)


def test_events_arrive_in_order_on_a_thread_of_each_plugin() -> None:
    seen: dict[str, list[float]] = {"one": [], "two": []}
    threads: dict[str, int] = {}

    def observe(name: str, event: Event) -> None:
        seen[name].append(event.at)
        threads[name] = threading.get_ident()

    event_bus = make_event_bus(one=lambda event: observe("one", event), two=lambda event: observe("two", event))
    for number in range(5):
        event_bus.tell(make_event(number))
    event_bus.close(10)
    assert seen == {"one": [0, 1, 2, 3, 4], "two": [0, 1, 2, 3, 4]}
    assert len({*threads.values(), threading.get_ident()}) == 3


def test_slow_plugin_loses_events_and_nobody_else_does(caplog: pytest.LogCaptureFixture) -> None:
    gate, seen = threading.Event(), []

    def block(event: Event) -> None:
        gate.wait(60)

    event_bus = make_event_bus(capacity=8, slow=block, quick=lambda event: seen.append(event.at))
    began = time.monotonic()
    for number in range(100):
        event_bus.tell(make_event(number))
        while len(seen) <= number and time.monotonic() - began < 30:
            time.sleep(0.0005)
    assert seen == list(range(100))
    assert caplog.text.count("'slow' watches too slowly") == 1
    event_bus.close(0.05)
    assert "'slow' missed 99 events, and raised on 0" in caplog.text
    assert "'quick' missed" not in caplog.text
    gate.set()


def test_plugin_that_raises_goes_on_and_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def observe(event: Event) -> None:
        seen.append(event.at)
        if event.at == 1:
            raise SystemExit("enough")
        raise ValueError("no")

    event_bus = make_event_bus(bad=observe)
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            event_bus.tell(make_event(number))
        event_bus.close(10)
    assert seen == [0, 1, 2, 3]
    assert caplog.text.count("Traceback") == 1
    assert "'bad' missed 0 events, and raised on 4" in caplog.text


def test_closing_waits_no_longer_than_told_and_hands_over_what_it_can() -> None:
    gate = threading.Event()
    event_bus = make_event_bus(one=lambda _: gate.wait(60), two=lambda _: gate.wait(60))
    for number in range(20):
        event_bus.tell(make_event(number))
    began = time.monotonic()
    event_bus.close(0.2)
    assert 0.1 < time.monotonic() - began < 2
    gate.set()


def test_thread_of_a_full_queue_ends_too() -> None:
    gate, others = threading.Event(), set(threading.enumerate())
    event_bus = make_event_bus(capacity=2, one=lambda _: gate.wait(60))
    for number in range(9):
        event_bus.tell(make_event(number))
    event_bus.close(0)
    gate.set()
    for thread in set(threading.enumerate()) - others:
        thread.join(10)
        assert not thread.is_alive()
