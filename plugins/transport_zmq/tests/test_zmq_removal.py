"""A key that was removed stays so, whoever vouches for it, until it is allowed again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parallax_core.api import ParallaxError, PeerLost, TransportPlan, keys_folder
from parallax_core.testing.joining import SECRET, VERSIONS, OneCode
from parallax_transport_zmq.cli import app
from parallax_transport_zmq.joining import ZmqJoining
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.zmq_nodes import LOOPBACK

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


class Codes:
    """Join codes of which some are valid."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.revoked: list[str] = []

    def describe_valid(self) -> dict[str, str]:
        return {name: "one machine until tomorrow" for name in self.names if name not in self.revoked}

    def revoke(self, name: str) -> None:
        self.revoked.append(name)


def run(*arguments: str, codes: Codes | None = None) -> tuple[str, str]:
    """Run ``parallax keys`` and return what it prints and says besides; what it raises is raised."""
    ran = CliRunner().invoke(app, arguments, catch_exceptions=False, obj=codes)
    assert ran.exit_code == 0
    return ran.stdout, ran.stderr


def test_removed_key_is_not_admitted_by_any_name(ring: Keyring) -> None:
    assert ring.admit(KEY, "mini") == "mini"
    ring.remove("mini", own=False)
    for wanted in ("mini", "Mini", "other"):
        with pytest.raises(ParallaxError, match="this machine was removed here, as 'mini'") as caught:
            ring.admit(KEY, wanted)
        assert f"parallax keys allow {KEY.hex()} mini" in caught.value.hint
    assert not ring.allows(KEY)
    assert ring.admit(OTHER, "mini") == "mini"


def test_removed_key_is_refused_whoever_vouches_for_it(home: Path) -> None:
    ring = Keyring(home / "keys", {"head": KEY})
    ring.allow(KEY, "friend", "head")
    ring.introduce({"mini/7": KEY})
    assert ring.find_role(KEY, "mini/7") == "worker"
    ring.remove("friend", own=False)
    assert [ring.find_role(KEY, node) for node in ("head", "friend", "mini/7")] == [None, None, None]
    assert [ring.find_public(node) for node in ("head", "friend", "mini/7")] == [None, None, None]
    assert list(ring.list_keys()) == []


def test_key_that_another_process_removed_this_moment_is_not_admitted(home: Path) -> None:
    ring = Keyring(home / "keys", age_s=3600)
    for number in range(3):
        key = bytes([number]) * 32
        name = ring.admit(key, "mini")
        Keyring(home / "keys").remove(name, own=False)
        with pytest.raises(ParallaxError, match="was removed here"):
            ring.admit(key, "mini")


def test_removal_outlives_the_process_and_ends_when_the_key_is_allowed(ring: Keyring) -> None:
    run("allow", KEY.hex(), "mini", "--role", "worker")
    run("remove", "mini")
    assert run("list")[0].split() == ["mini", "removed", KEY.hex()]
    assert Keyring(ring.folder).list_removed() == {KEY: "mini"}
    run("allow", KEY.hex(), "mini", "--role", "worker")
    assert run("list")[0].split() == ["mini", "allowed", KEY.hex(), "worker"]
    assert ring.admit(KEY, "mini") == "mini"
    assert not ring.list_removed()


def test_file_that_was_left_or_put_back_does_not_allow_a_removed_key(ring: Keyring, home: Path) -> None:
    ring.allow(KEY, "mini")
    kept = (home / "keys/known/mini.pub").read_text()
    ring.remove("mini", own=False)
    (home / "keys/known/mini.pub").write_text(kept)
    assert not ring.allows(KEY)
    assert ring.find_role(KEY, "mini/1") is None


def test_own_key_is_not_refused_because_it_was_removed_elsewhere(ring: Keyring) -> None:
    own = ring.make("default").public
    ring.take_over({}, {own: "server", KEY: "mini"}, {})
    assert ring.allows(own)
    assert ring.list_removed() == {KEY: "mini"}


def test_damaged_key_is_removed_without_a_trace(ring: Keyring, home: Path) -> None:
    ring.allow(KEY, "mini")
    (home / "keys/known/mini.pub").write_text("damaged")
    ring.remove("mini", own=False)
    assert not ring.list_removed()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("parallax_transport_zmq.keyring.write_removal", fail)


@pytest.mark.usefixtures("full_disk")
def test_removal_that_cannot_be_kept_is_told_and_ends_the_trust(ring: Keyring) -> None:
    ring.allow(KEY, "mini")
    with pytest.raises(ParallaxError, match="a join code may admit it again: No space left"):
        ring.remove("mini", own=False)
    assert not ring.allows(KEY)
    with pytest.raises(ParallaxError, match="cannot be kept"):
        ring.take_over({}, {OTHER: "desk"}, {})


def test_machines_of_another_head_are_admitted_but_those_that_were_removed(ring: Keyring) -> None:
    ring.allow(KEY, "mini")
    ring.remove("mini", own=False)
    machines = {"mini": KEY, "studio": OTHER, "HEAD": bytes(32), "../x": b"\1" * 32, "gone": b"\2" * 32}
    for _ in range(2):
        ring.take_over(machines, {b"\2" * 32: "gone"}, {})
    assert set(ring.list_machines().values()) == {OTHER, bytes(32), b"\1" * 32}
    assert ring.find_role(OTHER, "studio/7") == "worker"
    assert ring.list_removed() == {KEY: "mini", b"\2" * 32: "gone"}
    ring.take_over({"studio": OTHER}, {OTHER: "studio"}, {})
    assert not ring.allows(OTHER)
    assert "studio" not in {key.name for key in ring.list_keys()}


def test_servers_of_another_head_may_be_heads_and_none_that_was_removed(ring: Keyring) -> None:
    own = ring.make("default").public
    ring.allow(OTHER, "studio", "worker")
    ring.allow(KEY, "mini")
    ring.remove("mini", own=False)
    new, gone = b"\1" * 32, b"\2" * 32
    ring.take_over(
        {"studio": OTHER}, {gone: "gone"}, {"studio": OTHER, "server-1": new, "x": gone, "mini": KEY, "y": own}
    )
    found = {key: ring.find_key_role(key) for key in (OTHER, new, gone, KEY)}
    assert found == {OTHER: "any", new: "any", gone: None, KEY: None}
    assert ring.find_role(new, "server-1/7") == "any"
    assert [key.name for key in ring.list_keys() if key.public == own] == ["default"]


def test_machines_are_those_that_may_be_workers_here(ring: Keyring) -> None:
    own = ring.make("default").public
    ring.allow(own, "twin")
    ring.allow(KEY, "mini", "worker")
    ring.allow(OTHER, "head", "any")
    ring.allow(bytes(32), "server", "head")
    assert ring.list_machines() == {"mini": KEY}


@pytest.mark.parametrize("wanted", ["HEAD", "Head", "LOCAL", "Default"])
def test_no_reserved_name_is_given_in_any_case(ring: Keyring, wanted: str) -> None:
    assert ring.admit(KEY, wanted) == f"{wanted}-2"
    assert ring.find_public(wanted.lower()) is None


def test_names_that_differ_in_case_only_are_the_same(ring: Keyring) -> None:
    assert ring.admit(KEY, "Mini") == "Mini"
    assert ring.admit(OTHER, "mini") == "mini-2"
    with pytest.raises(ParallaxError, match="a key is known as 'Mini'"):
        ring.allow(bytes(32), "MINI")
    run("remove", "mini")
    assert not ring.allows(KEY)
    assert ring.admit(bytes(32), "mini") == "mini"


def test_names_of_an_earlier_version_that_differ_in_case_stay_apart(ring: Keyring, home: Path) -> None:
    ring.allow(KEY, "Mini")
    (home / "keys/known/mini.pub").write_text(f"{OTHER.hex()} worker\n")
    (home / "keys/known/mini.pub").chmod(0o600)
    assert (ring.find_public("Mini"), ring.find_public("mini")) == (KEY, OTHER)
    ring.remove("mini", own=False)
    assert (ring.allows(KEY), ring.allows(OTHER)) == (True, False)


def test_removal_names_the_codes_that_still_admit_and_offers_to_revoke_them(ring: Keyring) -> None:
    codes = Codes("cde0505e", "aa11bb22")
    for name in ("one", "two", "three"):
        ring.allow(bytes([len(name)]) * 31 + name.encode()[:1], name)
    _, told = run("remove", "one", codes=codes)
    assert "cde0505e: one machine until tomorrow" in told
    assert "parallax cluster codes revoke cde0505e aa11bb22" in told
    assert codes.revoked == []
    _, told = run("remove", "two", "--revoke-codes", codes=codes)
    assert "Revoked join codes: cde0505e, aa11bb22" in told
    assert codes.revoked == ["cde0505e", "aa11bb22"]
    assert run("remove", "three", codes=codes) == ("", "")


def test_command_without_join_codes_removes_keys_too(ring: Keyring) -> None:
    ring.allow(KEY, "mini")
    assert run("remove", "mini") == ("", "")


class Machines:
    """A head that has a code, and the homes of machines."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        self.enter("server")
        ZmqJoining().prepare("head")
        self.admission = OneCode(ZmqJoining().derive_proof(SECRET))
        self.head = ZmqTransport(TransportPlan(node="head", listen=LOOPBACK))
        self.head.enrol_by(self.admission)

    def enter(self, machine: str) -> None:
        """Have this process be a machine from now on."""
        self._patch.setenv("PARALLAX_HOME", str(self._folder / machine))

    async def enrol(self, wanted: str) -> str:
        """Join by the code as the machine ``guest``, and return the name that it is given."""
        self.enter("server")
        description = ZmqJoining().describe_head("head", self.head.address)
        self.enter("guest")
        return (await ZmqJoining().enrol(description, SECRET, wanted, VERSIONS)).machine

    def make_node(self, name: str) -> ZmqTransport:
        """Return a node of the machine ``guest``."""
        self.enter("server")
        heads = {"head": Keyring(keys_folder()).ensure_pair("head").public}
        self.enter("guest")
        return ZmqTransport(TransportPlan(node=name, heads=heads))


@pytest.fixture
async def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machines]:
    found = Machines(tmp_path, monkeypatch)
    await found.head.start()
    yield found
    await found.head.stop()


async def test_removed_machine_is_refused_with_a_code_that_is_still_good(machines: Machines) -> None:
    assert await machines.enrol("guest") == "guest"
    machines.enter("server")
    run("remove", "GUEST")
    for wanted in ("guest", "Guest", "somebody"):
        with pytest.raises(PeerLost, match="this machine was removed here, as 'guest'"):
            await machines.enrol(wanted)
    [key] = machines.admission.keys
    machines.enter("server")
    run("allow", key.hex(), "guest", "--role", "worker")
    assert await machines.enrol("guest") == "guest"


async def test_links_of_a_removed_machine_end_and_no_further_ones_are_made(machines: Machines) -> None:
    guest = machines.make_node(f"{await machines.enrol('guest')}/1")
    await guest.start()
    link = await guest.connect(machines.head.address, "head")
    machines.enter("server")
    run("remove", "guest")
    with pytest.raises(PeerLost, match="your key is no longer allowed"):
        await asyncio.wait_for(link.receive(), 5)
    with pytest.raises(PeerLost, match="does not know the key"):
        await guest.connect(machines.head.address, "head")
    await guest.stop()
