"""Decides whether a join code admits a machine."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeRecord:
    """What a head keeps of a code: enough to recognise it, but not the code itself."""

    proof: bytes
    """See `JoinMethod.derive_proof`."""
    created: float
    """Seconds since 1970."""
    expires: float
    """Seconds since 1970."""
    most_uses: int
    """The number of machines it admits; 0: any."""
    is_revoked: bool = False
    num_uses: int = 0
    """The machines it has admitted."""

    @property
    def name(self) -> str:
        """Eight hexadecimal digits by which users speak of the code."""
        return hashlib.sha256(self.proof).hexdigest()[:8]


def find_obstacle(code: CodeRecord | None, users: Collection[bytes], key: bytes, now: float) -> str:
    """Return why a code does not admit a machine; empty: it does.

    Args:
        code: the code; None: it is unknown.
        users: the keys of the machines that it has admitted.
        key: that of the machine.
        now: seconds since 1970, by the clock of the head.
    """
    if code is None:
        return "the join code is unknown here"
    if code.is_revoked:
        return f"the join code {code.name} was revoked"
    if now >= code.expires:
        return f"the join code {code.name} has expired"
    if key not in users and code.most_uses and len(users) >= code.most_uses:
        times = "once" if code.most_uses == 1 else f"by {code.most_uses} machines"
        return f"the join code {code.name} was to be used {times}, and has been"
    return ""


def describe_left(code: CodeRecord) -> str:
    """Return how many machines a valid code still admits."""
    left = code.most_uses - code.num_uses
    return "any number of machines" if not code.most_uses else "one machine" if left == 1 else f"{left} machines"


def describe_state(code: CodeRecord, now: float) -> str:
    """Return the state of a code in a word: valid, revoked, expired or used."""
    if code.is_revoked:
        return "revoked"
    if now >= code.expires:
        return "expired"
    return "used" if code.most_uses and code.num_uses >= code.most_uses else "valid"
