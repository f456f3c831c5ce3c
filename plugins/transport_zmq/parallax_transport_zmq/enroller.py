"""Admits machines by join codes: one after the other, on a thread, and within a rate for each code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from parallax_core.api import Admission, IncompatibleNode, ParallaxError
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.message import BadMessage, EnrolRequest, Kind, OtherVersion, pack_enrolled, pack_reason

logger = logging.getLogger(__name__)

MOST_ASKING = 64
"""The most machines that wait to be admitted."""
BURST, PER_SECOND = 64.0, 8.0
"""Of each code: the questions that may come at once, and those that may follow in a second."""
MOST_CODES = 256
"""The most codes whose rate is kept."""
LOG_S = 60.0
"""Seconds between two refusals of a code that are logged."""
BUSY = "too many machines ask to join by this code: try again in a few seconds"


@dataclass(frozen=True, slots=True)
class Applicant:
    """A machine that has proved the secret of a code, and asks to be admitted."""

    identity: bytes
    """Of its connection."""
    file: int
    """The descriptor of its connection."""
    proof: bytes
    """Of the code; see `parallax_core.api.Admission`."""
    request: EnrolRequest


@dataclass(slots=True)
class Allowance:
    """What is left of the rate of a code."""

    left: float
    at: float
    """When it was ``left``."""
    log_at: float = 0.0
    """When a refusal may be logged again."""

    def take(self, now: float) -> bool:
        """Take a question, if there is one left."""
        self.left = min(BURST, self.left + (now - self.at) * PER_SECOND)
        self.at = now
        has_some = self.left >= 1.0
        self.left -= has_some
        return has_some


class Enroller:
    """Answers machines that ask to be admitted. Belongs to one event loop."""

    def __init__(self, keyring: Keyring, admission: Admission, answer: Callable[[Applicant, bytes], None]) -> None:
        """Admit machines as ``admission`` decides, and keep their keys in ``keyring``.

        ``answer`` is called for each, with an empty answer if what it asks cannot be read.
        """
        self._keyring, self._admission, self._answer = keyring, admission, answer
        self._waiting: asyncio.Queue[Applicant] = asyncio.Queue(MOST_ASKING)
        self._codes: dict[bytes, Allowance] = {}
        """By proof, the one that was asked for last at the end."""
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Stop admitting machines. Idempotent."""
        self._task.cancel()

    def ask(self, applicant: Applicant) -> None:
        """Queue a machine for an answer: admission, or refusal with the reason."""
        now = asyncio.get_running_loop().time()
        code = self._codes.pop(applicant.proof, None) or Allowance(BURST, now)
        self._codes[applicant.proof] = code
        if len(self._codes) > MOST_CODES:
            del self._codes[next(iter(self._codes))]
        if not code.take(now) or self._waiting.full():
            self._refuse(applicant, Kind.REFUSE, BUSY)
        else:
            self._waiting.put_nowait(applicant)

    async def _run(self) -> None:
        while True:
            applicant = await self._waiting.get()
            try:
                self._answer(applicant, await asyncio.to_thread(self._enrol, applicant))
            except OtherVersion as error:
                self._refuse(applicant, Kind.REFUSE, str(error))
            except BadMessage:
                self._answer(applicant, b"")
            except IncompatibleNode as error:
                self._refuse(applicant, Kind.INCOMPATIBLE, error.message)
            except ParallaxError as error:
                self._refuse(applicant, Kind.REFUSE, error.message)
            except OSError as error:
                self._refuse(applicant, Kind.REFUSE, f"it cannot keep the key of a machine: {error.strerror}")
            except Exception:  # others may be admitted, whatever the error is
                logger.exception("a machine was not answered")
                self._answer(applicant, b"")

    def _enrol(self, applicant: Applicant) -> bytes:
        """Admit a machine, and return the answer; called on a thread.

        Raises:
            BadMessage: if what it asks cannot be read.
            ParallaxError: if it is not admitted.
            OSError: if its key cannot be kept.
        """
        try:
            self._admission.check_versions(applicant.request.versions)
        except ValueError as error:
            raise BadMessage("versions that cannot be read") from error
        key, wanted = applicant.request.read()
        self._keyring.check_removed(key)
        is_known = self._keyring.allows(key)
        if not is_known:
            self._admission.admit(applicant.proof, key)
        name = self._keyring.admit(key, wanted)
        if not is_known:
            logger.info("machine admitted name=%s key=%s", name, key.hex())
        return pack_enrolled(name)

    def _refuse(self, applicant: Applicant, kind: Kind, reason: str) -> None:
        now, code = asyncio.get_running_loop().time(), self._codes.get(applicant.proof)
        if code is not None and now >= code.log_at:
            code.log_at = now + LOG_S
            logger.warning("refused a machine with a join code: %s", reason)
        self._answer(applicant, pack_reason(kind, reason))
