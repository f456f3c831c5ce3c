"""The kit for join codes: a code admits a machine once, which then uses its own key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from parallax_core.base.errors import IncompatibleNode, ParallaxError, PeerLost
from parallax_core.base.refs import Ref
from parallax_core.contracts.joining import MOST_HEAD_BYTES, Enrolling, Enrolment, JoinMethod, MachineKeys
from parallax_core.contracts.transport import Guarded, Link, Transport, TransportPlan, TransportSpec
from parallax_core.testing.promise import broken, expect
from parallax_core.testing.runner import beside, in_loop, within

ONCE = "Ask the head to admit this machine's own key"
AGAIN = "A second call with the same code is harmless"
HEAD_KEY = "Nothing is sent before the head has proved its key"
REFUSED = "if the head cannot be reached, is another one, or refuses; with its reason"
SIZE = "At most `MOST_HEAD_BYTES`, which are part of the code and not secret"
DAMAGED = "if it is damaged"
PROOF = "a head stores to recognise it; the secret cannot be derived from it"
NAME = "The name by which the head knows this machine"
VERSION = "which the head checks (`Admission.check_versions`) before it counts a use"
VERSIONS, OTHER_VERSIONS = b"versions", b""
OTHER_VERSION = "it has another version"
REMOVED = "A machine that was removed stays so, whatever code it has"
SECRET, OTHER_SECRET = bytes(range(16)), bytes(range(1, 17))


class OneCode:
    """An `Admission` by one code."""

    def __init__(self, proof: bytes) -> None:
        self.proof = proof
        self.obstacle = ""
        self.keys: list[bytes] = []

    def knows(self, proof: bytes) -> bool:
        """Return whether it is the code's."""
        return proof == self.proof

    def check_versions(self, versions: bytes) -> None:
        """Refuse all versions but one."""
        if versions != VERSIONS:
            raise IncompatibleNode(OTHER_VERSION)

    def admit(self, proof: bytes, key: bytes) -> None:
        """Note the key, unless there is an obstacle."""
        if proof != self.proof or self.obstacle:
            raise ParallaxError(self.obstacle or "unknown code")
        self.keys.append(key)


class JoinConformance:
    """Holds the join codes of a transport to `parallax_core.contracts.joining`.

    Subclass it in a test module under a name that begins with ``Test``, and give ``spec``, `make_address` and
    `enter_machine`.
    """

    spec: TransportSpec
    """The transport, with ``joining``."""
    patience_s = 20.0
    """Seconds that any single call may take."""

    def make_address(self) -> str:
        """Return an address at which a head listens in this process, with a free port."""
        raise NotImplementedError

    def enter_machine(self, name: str) -> Path | None:
        """Make later transports and join methods those of another machine, with keys of its own."""
        raise NotImplementedError

    @in_loop
    async def test_machine_is_admitted_once_and_links_by_its_own_key(self) -> None:
        """After `enrol` the machine links without the code, as a worker; a second `enrol` gives the same name."""
        async with self.listening() as (head, admission, description):
            joined = await self.enrol("guest", description, SECRET)
            again = await self.enrol("guest", description, SECRET)
            assert again.machine == joined.machine, broken(f"{again.machine!r} is not {joined.machine!r}", AGAIN)
            assert len(set(admission.keys)) == 1, broken(f"{len(set(admission.keys))} keys were admitted", ONCE)
            admission.obstacle = "it has expired"
            async with self.linked("guest", joined, description, head) as link:
                role = link.role if isinstance(link, Guarded) else "any"
                assert role == "worker", broken(f"the machine has the role {role!r}", ONCE)

    @in_loop
    async def test_machines_of_one_name_get_different_names(self) -> None:
        """Two machines that want the same name, and one that wants the head's, are told apart."""
        async with self.listening() as (_, admission, description):
            names = [
                (await self.enrol(machine, description, SECRET, wanted)).machine
                for machine, wanted in (("first", "pi"), ("second", "pi"), ("third", "head"))
            ]
            assert len(set(names)) == len(names), broken(f"the names are {names}", NAME)
            assert "head" not in names, broken("a machine is called like the head", NAME)
            assert len(set(admission.keys)) == len(names), broken("machines share a key", ONCE)

    @in_loop
    async def test_wrong_code_is_refused(self) -> None:
        """Another secret admits no machine, and is an error in time."""
        async with self.listening() as (_, admission, description):
            with expect(PeerLost, "enrol with a wrong secret", REFUSED):
                await self.enrol("guest", description, OTHER_SECRET)
            assert not admission.keys, broken("a wrong secret has admitted a machine", ONCE)

    @in_loop
    async def test_machine_that_was_removed_stays_out(self) -> None:
        """A machine that was removed is not admitted by a code that is still good, nor linked; for `MachineKeys`."""
        async with self.listening() as (head, admission, description):
            joined = await self.enrol("guest", description, SECRET)
            [key] = admission.keys
            self.enter_machine("server")
            machines: object = self.make_method()
            if not isinstance(machines, MachineKeys):
                return
            known = machines.list_machines()
            assert known == {joined.machine: key}, broken(f"the machines are {known}", "the machines that may join")
            machines.take_over({}, {key: joined.machine}, {})
            for wanted in ("guest", "GUEST", "another"):
                with expect(PeerLost, "enrol of a machine that was removed", REMOVED):
                    await self.enrol("guest", description, SECRET, wanted)
            with expect(PeerLost, "a link of a machine that was removed", REMOVED):
                async with self.linked("guest", joined, description, head):
                    pass
            self.enter_machine("server")
            machines.take_over({joined.machine: key}, {}, {})
            assert not machines.list_machines(), broken("another head's list has brought it back", REMOVED)
            assert machines.list_removed() == {key: joined.machine}, broken("its removal is forgotten", REMOVED)

    @in_loop
    async def test_reason_of_a_refusal_reaches_the_machine(self) -> None:
        """The error of `enrol` has the text of the head's."""
        async with self.listening() as (_, admission, description):
            admission.obstacle = "the code has expired"
            with expect(PeerLost, "enrol with an expired code", REFUSED) as caught:
                await self.enrol("guest", description, SECRET)
            told = caught.error.message if caught.error else ""
            assert admission.obstacle in told, broken(f"the error is {told!r}", REFUSED)

    @in_loop
    async def test_machine_of_another_version_learns_why_before_the_code_is_used(self) -> None:
        """`enrol` raises `IncompatibleNode` with the head's reason, and no use is counted."""
        async with self.listening() as (_, admission, description):
            with expect(IncompatibleNode, "enrol with other versions", VERSION) as caught:
                await self.enrol("guest", description, SECRET, versions=OTHER_VERSIONS)
            told = caught.error.message if caught.error else ""
            assert OTHER_VERSION in told, broken(f"the error is {told!r}", REFUSED)
            assert not admission.keys, broken("a use was counted", VERSION)

    @in_loop
    async def test_head_with_another_key_is_not_trusted(self) -> None:
        """A code of another head at the same address admits no machine."""
        async with self.listening() as (head, admission, _):
            self.enter_machine("impostor")
            method = self.make_method()
            method.prepare("head")
            other = method.describe_head("head", head.address)
            with expect(PeerLost, "enrol at a head with another key", REFUSED):
                await self.enrol("guest", other, SECRET)
            assert not admission.keys, broken("a head with another key has admitted a machine", HEAD_KEY)

    @in_loop
    async def test_nobody_there_is_an_error_in_time(self) -> None:
        """`enrol` raises `PeerLost` if no head listens."""
        async with self.listening() as (_, _, description):
            pass
        with expect(PeerLost, "enrol where nobody listens", REFUSED):
            await self.enrol("guest", description, SECRET)

    @in_loop
    async def test_description_is_small_and_damage_is_found(self) -> None:
        """`describe_head` keeps its size; an empty description is refused."""
        async with self.listening() as (head, _, description):
            method = self.make_method()
            assert len(description) <= MOST_HEAD_BYTES, broken(f"it has {len(description)} bytes", SIZE)
            assert head.address in method.list_addresses(description), broken("the address is not in it", SIZE)
            with expect(ParallaxError, "reading the key in an empty description", DAMAGED):
                method.find_key(b"")

    def test_proof_is_of_one_secret_and_does_not_contain_it(self) -> None:
        """`derive_proof` is a function of the secret."""
        method = self.make_method()
        proofs = [method.derive_proof(secret) for secret in (SECRET, SECRET, OTHER_SECRET)]
        assert proofs[0] == proofs[1], broken("it differs for the same secret", PROOF)
        assert proofs[0] != proofs[2], broken("it is the same for two secrets", PROOF)
        assert SECRET not in proofs[0], broken("it contains the secret", PROOF)

    def make_method(self) -> JoinMethod:
        """Return the join method of the machine entered last."""
        assert self.spec.joining is not None, "the transport has codes"
        return self.spec.joining.load()()

    def make_transport(self, plan: TransportPlan) -> Transport:
        """Return a transport of the machine entered last."""
        factory: Ref = self.spec.factory  # type: ignore[type-arg]
        made: Transport = factory.load()(plan)
        return made

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[tuple[Transport, OneCode, bytes]]:
        """Start a head with one code; yield its transport, the code and its description."""
        self.enter_machine("server")
        method = self.make_method()
        method.prepare("head")
        admission = OneCode(method.derive_proof(SECRET))
        head = self.make_transport(TransportPlan(node="head", listen=self.make_address()))
        assert isinstance(head, Enrolling), "a transport with codes can enrol machines"
        head.enrol_by(admission)
        await head.start()
        try:
            yield head, admission, method.describe_head("head", head.address)
        finally:
            await head.stop()

    async def enrol(
        self, machine: str, head: bytes, secret: bytes, wanted: str = "", versions: bytes = VERSIONS
    ) -> Enrolment:
        """Enrol a machine by a code."""
        self.enter_machine(machine)
        enrolling = self.make_method().enrol(head, secret, wanted or machine, versions)
        return await within(self.patience_s, enrolling, "enrol hangs", REFUSED)

    @asynccontextmanager
    async def linked(self, machine: str, joined: Enrolment, description: bytes, head: Transport) -> AsyncIterator[Link]:
        """Link a node of a machine that has joined to the head, and yield the head's end."""
        self.enter_machine(machine)
        heads = {"head": self.make_method().find_key(description)}
        node = self.make_transport(TransportPlan(node=f"{joined.machine}/1", heads=heads))
        await node.start()
        try:
            async with beside(head.accept()) as accepting:
                connecting = node.connect(joined.address, "head")
                await within(self.patience_s, connecting, "connecting with the own key hangs", ONCE)
                yield await within(self.patience_s, accepting, "no link arrives", ONCE)
        finally:
            await node.stop()
