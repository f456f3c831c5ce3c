"""How machines join a cluster by a code: an optional part of a transport.

A code names a transport and contains a secret and what that transport says about the head: its addresses and its key.
The head admits the machine once by the secret, and from then on by the machine's own key. Core makes the codes and
decides which of them are valid; the transport proves secrets and keys, and remembers the keys it has admitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from parallax_core.contracts.transport import NodeRole

MOST_HEAD_BYTES = 512
"""The most bytes in which a transport may describe a head."""


class ListeningHead(NamedTuple):
    """A head at which machines join, as it listened last on this machine."""

    transport: str
    head: bytes
    """Its description; see `JoinMethod`."""


class Admission(Protocol):
    """Decides which machines a head admits; core implements it by its join codes. Safe for threads."""

    def knows(self, proof: bytes) -> bool:
        """Return whether ``proof`` belongs to a code of this head, be it valid or not.

        Called for each connection, by whomever it is made: it answers from memory.
        """

    def check_versions(self, versions: bytes) -> None:
        """Check that this head can work with a machine of these versions, before `admit`.

        Raises:
            IncompatibleNode: if not; its message is for the machine.
            ValueError: if they cannot be read.
        """

    def admit(self, proof: bytes, key: bytes) -> None:
        """Count a use of the code, by the machine whose own key is ``key``; again for the same key is no further use.

        Raises:
            ParallaxError: if the code is unknown, expired, revoked or used up; with the reason.
        """


class JoinCodes(Protocol):
    """The join codes of this machine's heads. Core gives it to the commands of plugins, as ``obj`` of their context."""

    def describe_valid(self) -> Mapping[str, str]:
        """Return the codes that still admit machines, by name, each with a description of these machines.

        Raises:
            ParallaxError: if they cannot be read.
        """

    def revoke(self, name: str) -> None:
        """Revoke the code called ``name``: it admits no further machine.

        Raises:
            UnknownName: if there is none.
            ParallaxError: if they cannot be written.
        """


@runtime_checkable
class Enrolling(Protocol):
    """An optional protocol of a `Transport` that admits machines by a code."""

    def enrol_by(self, admission: Admission) -> None:
        """Admit machines as ``admission`` decides; called before `Transport.start`."""


@runtime_checkable
class Identified(Protocol):
    """An optional protocol of a `Link` whose transport tells nodes apart by keys."""

    @property
    def key(self) -> bytes:
        """The key that the peer has proved; empty if none was required."""


@runtime_checkable
class Introducing(Protocol):
    """An optional protocol of a `Transport` of a worker, whose head tells it the keys of its neighbours."""

    def introduce(self, keys: Mapping[str, bytes]) -> None:
        """Trust these nodes as workers, by their keys, and no longer those of an earlier call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Enrolment:
    """The answer of a head that has admitted this machine."""

    machine: str
    """The name by which the head knows this machine; its nodes are called ``NAME/...``."""
    address: str
    """The address at which the head answered."""


class JoinMethod(Protocol):
    """The part of a transport that makes and uses codes; found by `TransportSpec.joining`."""

    def prepare(self, node: str) -> None:
        """Create a key for this machine's node called ``node``, unless it exists.

        Raises:
            ParallaxError: if that fails.
        """

    def describe_head(self, node: str, address: str) -> bytes:
        """Return how other machines reach and recognise the node of this machine that listens at ``address``.

        At most `MOST_HEAD_BYTES`, which are part of the code and not secret.

        Raises:
            ParallaxError: if no other machine can join there.
        """

    def list_addresses(self, head: bytes) -> tuple[str, ...]:
        """Return the addresses in the description of a head.

        Raises:
            ParallaxError: if it is damaged.
        """

    def find_key(self, head: bytes) -> bytes:
        """Return the key in the description of a head, for `TransportPlan.heads`.

        Raises:
            ParallaxError: if it is damaged.
        """

    def derive_proof(self, secret: bytes) -> bytes:
        """Return a proof of a secret that a head stores to recognise it; the secret cannot be derived from it."""

    async def enrol(self, head: bytes, secret: bytes, machine: str, versions: bytes) -> Enrolment:
        """Ask the head to admit this machine's own key, created if missing; takes at most 5 seconds.

        Nothing is sent before the head has proved its key. A second call with the same code is harmless.

        Args:
            head: its description.
            secret: that of the code.
            machine: the name that this machine would like to have.
            versions: of this machine, which the head checks (`Admission.check_versions`) before it counts a use.

        Raises:
            IncompatibleNode: if the head cannot work with these versions; with its reason.
            PeerLost: if the head cannot be reached, is another one, or refuses; with its reason.
            ParallaxError: if the description is damaged, or this machine's key cannot be made.
        """


@runtime_checkable
class MachineKeys(Protocol):
    """An optional protocol of a `JoinMethod` that keeps the keys of machines which a head of this machine admitted.

    A machine that was removed stays so, whatever code it has and whoever vouches for it, until a user allows its key.
    """

    def list_machines(self) -> Mapping[str, bytes]:
        """Return the keys of the machines that may join, by name."""

    def list_removed(self) -> Mapping[bytes, str]:
        """Return the keys of the machines that were removed, each with its name."""

    def find_role(self, key: bytes) -> NodeRole | None:
        """Return the role of a key, of whichever machine; None for an unknown or removed key."""

    def take_over(
        self, machines: Mapping[str, bytes], removed: Mapping[bytes, str], servers: Mapping[str, bytes]
    ) -> None:
        """Admit the machines of another head, and none that was removed there or here.

        The keys of ``servers`` get the role ``any``, so that they may be heads.

        Raises:
            ParallaxError: if that cannot be kept.
        """
