from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parallax_core.api import IncompatibleNode, ParallaxError
from parallax_core.testing.joining import VERSIONS
from parallax_transport_zmq import enroller as module
from parallax_transport_zmq.enroller import Allowance, Applicant, Enroller
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.message import EnrolRequest, Kind, pack_enrol, unpack_enrolled, unpack_reason
from tests.support.zmq_nodes import eventually

CODE, OTHER = b"one code", b"another"


class Admits:
    """An `Admission` that says on which threads it was asked, and may wait."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.threads: set[int] = set()
        self.obstacle = ""
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def knows(self, proof: bytes) -> bool:
        return proof == CODE

    def check_versions(self, versions: bytes) -> None:
        if versions != VERSIONS:
            raise IncompatibleNode("it is older")

    def admit(self, proof: bytes, key: bytes) -> None:
        del proof
        self.may_go_on.wait(10)
        self.threads.add(threading.get_ident())
        if self.obstacle:
            raise ParallaxError(self.obstacle)
        self.keys.append(key)


class Answers:
    """The answers to requests, by the number of the machine."""

    def __init__(self) -> None:
        self.found: dict[int, bytes] = {}

    def note(self, applicant: Applicant, answer: bytes) -> None:
        self.found[int(applicant.identity)] = answer

    def list_refused(self) -> list[int]:
        return [number for number, answer in self.found.items() if answer[:1] == Kind.REFUSE]


def ask(enroller: Enroller, number: int, proof: bytes = CODE) -> None:
    request = EnrolRequest.unpack(pack_enrol(VERSIONS, number.to_bytes(32, "big"), "guest"))
    enroller.ask(Applicant(str(number).encode(), -1, proof, request))


@asynccontextmanager
async def enrolling(ring: Keyring) -> AsyncIterator[tuple[Enroller, Admits, Answers]]:
    admission, answers = Admits(), Answers()
    enroller = Enroller(ring, admission, answers.note)
    try:
        yield enroller, admission, answers
    finally:
        enroller.close()


async def test_machines_are_admitted_off_the_loop_and_in_turn(ring: Keyring) -> None:
    async with enrolling(ring) as (enroller, admission, answers):
        for number in range(3):
            ask(enroller, number)
        await eventually(lambda: len(answers.found) == 3)
        assert [unpack_enrolled(answer) for answer in answers.found.values()] == ["guest", "guest-2", "guest-3"]
        assert threading.get_ident() not in admission.threads
        ask(enroller, 1)
        ask(enroller, 7)
        await eventually(lambda: 7 in answers.found)
        assert unpack_enrolled(answers.found[1]) == "guest-2"
        assert len(admission.keys) == 4, "who is known needs no further use"


async def test_code_buys_a_bounded_rate_of_work_and_no_other_pays_for_it(
    ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BURST", 3.0)
    monkeypatch.setattr(module, "PER_SECOND", 0.001)
    async with enrolling(ring) as (enroller, admission, answers):
        admission.obstacle = "the join code was revoked"
        for number in range(100):
            ask(enroller, number)
        assert len(answers.found) == 97
        assert unpack_reason(answers.found[50]) == module.BUSY
        ask(enroller, 200, OTHER)
        await eventually(lambda: 200 in answers.found)
        assert unpack_reason(answers.found[200]) == "the join code was revoked"


async def test_refusals_of_a_code_are_logged_once_a_minute(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    async with enrolling(ring) as (enroller, admission, answers):
        admission.obstacle = "the join code 12345678 was revoked"
        for number in range(200):
            ask(enroller, number)
        await eventually(lambda: len(answers.found) == 200)
    assert caplog.text.count("refused a machine with a join code") == 1
    assert "12345678" in caplog.text or module.BUSY in caplog.text


async def test_machines_that_wait_are_bounded(ring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ASKING", 4)
    async with enrolling(ring) as (enroller, admission, answers):
        admission.may_go_on.clear()
        ask(enroller, 0)
        await asyncio.sleep(0.01)  # until it is taken
        for number in range(1, 20):
            ask(enroller, number)
        assert len(answers.list_refused()) == 15
        admission.may_go_on.set()
        await eventually(lambda: len(answers.found) == 20)


async def test_codes_that_are_remembered_are_bounded(ring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CODES", 4)
    monkeypatch.setattr(module, "BURST", 1.0)
    monkeypatch.setattr(module, "PER_SECOND", 0.001)
    async with enrolling(ring) as (enroller, _, answers):
        for number, code in enumerate((0, 1, 2, 3, 0, 4, 1, 0)):
            ask(enroller, number, str(code).encode())
        await eventually(lambda: len(answers.found) == 8)
        assert answers.list_refused() == [4, 7], "whose code is still known has used up its allowance"


async def test_key_that_cannot_be_kept_is_a_reason(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    ring.allow(bytes(32), "first")
    async with enrolling(ring) as (enroller, _, answers):
        ring.admit = lambda *_: raise_full()  # type: ignore[method-assign]
        ask(enroller, 1)
        await eventually(lambda: 1 in answers.found)
        assert "No space left" in unpack_reason(answers.found[1])


async def test_unexpected_error_costs_one_machine(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    async with enrolling(ring) as (enroller, admission, answers):
        admission.keys = None  # type: ignore[assignment]
        ask(enroller, 1)
        await eventually(lambda: 1 in answers.found)
        assert answers.found[1] == b""
        assert "a machine was not answered" in caplog.text
        admission.keys = []
        ask(enroller, 2)
        await eventually(lambda: 2 in answers.found)
        assert unpack_enrolled(answers.found[2]) == "guest"


def raise_full() -> str:
    raise OSError(28, "No space left on device")


def test_allowance_grows_back_up_to_its_burst() -> None:
    code = Allowance(2.0, 0.0)
    assert [code.take(0.0) for _ in range(3)] == [True, True, False]
    assert code.take(1.0 / module.PER_SECOND)
    assert not code.take(1.0 / module.PER_SECOND)
    assert [code.take(1e6) for _ in range(int(module.BURST) + 1)].count(True) == module.BURST


async def test_enroller_that_is_closed_leaves_no_task(ring: Keyring) -> None:
    async with enrolling(ring):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
