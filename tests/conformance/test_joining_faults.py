"""Each fault is planted into the join codes of a healthy transport, and the kit is asked whether it sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parallax_core.api import Enrolment, PeerLost, Ref, TransportPlan
from parallax_core.testing.joining import VERSIONS, JoinConformance
from parallax_transport_zmq import listener, plugin
from parallax_transport_zmq.joining import ZmqJoining
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.transport import ZmqTransport
from tests.conformance.harness import run_test

[SPEC] = plugin.parallax_register_transports()
ONCE = "test_machine_is_admitted_once_and_links_by_its_own_key"
NAMES = "test_machines_of_one_name_get_different_names"
WRONG = "test_wrong_code_is_refused"
VERSION = "test_machine_of_another_version_learns_why_before_the_code_is_used"
REASON = "test_reason_of_a_refusal_reaches_the_machine"
IMPOSTOR = "test_head_with_another_key_is_not_trusted"
SMALL = "test_description_is_small_and_damage_is_found"
REMOVED = "test_machine_that_was_removed_stays_out"
PROOF = "test_proof_is_of_one_secret_and_does_not_contain_it"


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[JoinConformance]:
    class Kit(JoinConformance):
        spec = SPEC

        def make_address(self) -> str:
            return "tcp://127.0.0.1:0"

        def enter_machine(self, name: str) -> None:
            monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / name))

    return Kit


class SilentRefusal(ZmqJoining):
    """It does not pass the reason on."""

    async def enrol(self, head: bytes, secret: bytes, machine: str, versions: bytes) -> Enrolment:
        try:
            return await ZmqJoining.enrol(self, head, secret, machine, versions)
        except PeerLost:
            raise PeerLost("it was refused", "try again") from None


class Gullible(ZmqJoining):
    """It takes the word of every head."""

    async def enrol(self, head: bytes, secret: bytes, machine: str, versions: bytes) -> Enrolment:
        try:
            return await ZmqJoining.enrol(self, head, secret, machine, versions)
        except PeerLost:
            return Enrolment(machine=machine, address="")


class Boastful(ZmqJoining):
    """It says that this machine has the versions of the head."""

    async def enrol(self, head: bytes, secret: bytes, machine: str, versions: bytes) -> Enrolment:
        return await ZmqJoining.enrol(self, head, secret, machine, VERSIONS)


class Wordy(ZmqJoining):
    """Its description is too long."""

    def describe_head(self, node: str, address: str) -> bytes:
        return ZmqJoining.describe_head(self, node, address) + b"," * 1000


class Open(ZmqJoining):
    """Its proof is the secret."""

    def derive_proof(self, secret: bytes) -> bytes:
        return secret


class Forgetful(ZmqTransport):
    """It does not trust the keys it admits."""

    def __init__(self, plan: TransportPlan) -> None:
        super().__init__(plan)
        self._keyring.allow = lambda *_: None  # type: ignore[method-assign]


@pytest.mark.parametrize("name", [ONCE, NAMES, WRONG, REASON, VERSION, REMOVED, IMPOSTOR, SMALL, PROOF])
def test_healthy_transport_passes(kit: type[JoinConformance], name: str) -> None:
    assert run_test(kit, name) == ""


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("SilentRefusal", REASON),
        ("Boastful", VERSION),
        ("Gullible", WRONG),
        ("Gullible", IMPOSTOR),
        ("Wordy", SMALL),
        ("Open", PROOF),
    ],
)
def test_fault_of_the_joining_side_is_found(kit: type[JoinConformance], method: str, name: str) -> None:
    kit.spec = replace(SPEC, joining=Ref(f"{__name__}:{method}"))
    assert run_test(kit, name) != ""


def test_key_that_is_not_trusted_is_found(kit: type[JoinConformance]) -> None:
    kit.spec = replace(SPEC, factory=Ref(f"{__name__}:Forgetful"))
    assert run_test(kit, ONCE) != ""


@pytest.mark.parametrize("name", ["check_removed", "_remove_all"])
def test_removal_that_does_not_last_is_found(
    kit: type[JoinConformance], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def forget(ring: Keyring, removed: object) -> None:
        for path in (*ring.folder.glob("known/*.pub"), *ring.folder.glob("removed/*")):
            path.unlink()

    monkeypatch.setattr(Keyring, name, forget)
    assert run_test(kit, REMOVED) != ""


def test_shared_name_is_found(kit: type[JoinConformance], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keyring, "admit", lambda _, public, wanted: wanted)
    assert run_test(kit, NAMES) != ""


def test_admission_without_a_code_is_found(kit: type[JoinConformance], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ZmqTransport, "_allows", lambda *_: True)
    monkeypatch.setattr(listener, "_read_key", lambda _: ZmqJoining().derive_proof(bytes(range(16))))
    assert run_test(kit, WRONG) != ""
