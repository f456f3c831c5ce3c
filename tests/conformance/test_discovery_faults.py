"""Each fault is planted into a healthy discovery, and the kit is asked whether it sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import MOST_QUESTION_BYTES, FindAnswer, Ref
from parallax_core.testing.discovery import DiscoveryConformance
from parallax_transport_zmq import discovery, plugin
from parallax_transport_zmq.discovery import UdpDiscovery
from tests.conformance.harness import list_tests, run_test
from tests.support.zmq_nodes import find_port

[SPEC] = plugin.parallax_register_transports()
PORT = find_port()
"""Not that of nodes which may run on this machine, nor of other tests."""
ARRIVES = "test_answer_to_a_question_arrives"
EVERY = "test_every_node_that_answers_is_heard"
SILENT = "test_node_without_an_answer_is_silent"
LATER = "test_node_that_begins_to_answer_later_is_found"
ENDED = "test_node_that_has_ended_is_silent_and_may_begin_again"
LONG = "test_long_answer_is_not_sent_and_long_question_is_an_error"
OWN = "test_answers_are_those_to_the_own_question"
LEFT = "test_nothing_is_left_behind"


class Healthy(UdpDiscovery):
    def __init__(self) -> None:
        super().__init__(PORT)


class Kit(DiscoveryConformance):
    spec = replace(SPEC, discovery=Ref(f"{__name__}:Healthy"))
    patience_s = 2.0

    def make_address(self) -> str:
        return "tcp://127.0.0.1:1"


class Cutting(Healthy):
    """It loses the end of a question."""

    def ask(self, question: bytes) -> AsyncGenerator[bytes, None]:
        return super().ask(question[:32])


class FirstOnly(Healthy):
    """It yields the first answer, and no other."""

    async def ask(self, question: bytes) -> AsyncGenerator[bytes, None]:
        async with aclosing(super().ask(question)) as answers:
            yield await anext(answers)
            await asyncio.sleep(3600)


class Talkative(Healthy):
    """It sends something where there is no answer."""

    def answering(self, address: str, find_answer: FindAnswer) -> Any:
        return super().answering(address, lambda question: find_answer(question) or b"")


class Undying(Healthy):
    """It goes on answering after its end."""

    def answering(self, address: str, find_answer: FindAnswer) -> Any:
        return Forever(super().answering(address, find_answer))


class Forever(AbstractAsyncContextManager[None]):
    kept: list[AbstractAsyncContextManager[None]] = []  # noqa: RUF012 -- until the loop ends

    def __init__(self, inner: AbstractAsyncContextManager[None]) -> None:
        self.kept.append(inner)

    async def __aenter__(self) -> None:
        await self.kept[-1].__aenter__()

    async def __aexit__(self, *_: object) -> None:
        pass


class Boundless(Healthy):
    """It asks questions of any length, by cutting them."""

    def ask(self, question: bytes) -> AsyncGenerator[bytes, None]:
        return super().ask(question[:MOST_QUESTION_BYTES])


class Leaking(Healthy):
    """It leaves a task."""

    async def ask(self, question: bytes) -> AsyncGenerator[bytes, None]:
        asyncio.create_task(asyncio.sleep(3600))  # noqa: RUF006 -- that is the fault
        async with aclosing(super().ask(question)) as answers:
            async for answer in answers:
                yield answer


@pytest.mark.parametrize("name", list_tests(Kit))
def test_healthy_discovery_passes(name: str) -> None:
    assert run_test(Kit, name) == ""


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("Cutting", ARRIVES),
        ("FirstOnly", EVERY),
        ("Talkative", SILENT),
        ("Undying", ENDED),
        ("Boundless", LONG),
        ("Leaking", LEFT),
    ],
)
def test_fault_is_found(fault: str, name: str) -> None:
    kit = type("Faulty", (Kit,), {"spec": replace(SPEC, discovery=Ref(f"{__name__}:{fault}"))})
    assert run_test(kit, name) != ""


def test_question_that_is_asked_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "ASK_S", (3600.0,))
    assert run_test(Kit, LATER) != ""


def test_answer_beyond_the_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MOST_ANSWER_BYTES", 1024)
    assert run_test(Kit, LONG) != ""


def test_answer_to_another_question_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[discovery.Asker] = []

    def hear(self: discovery.Asker, data: bytes, _: object) -> None:
        if self not in heard:
            heard.append(self)
        found = discovery.unpack(data, discovery.ANSWER)
        for each in heard if found else ():
            each.answers.put_nowait(found[1])  # type: ignore[index]

    monkeypatch.setattr(discovery.Asker, "hear", hear)
    assert run_test(Kit, OWN) != ""
