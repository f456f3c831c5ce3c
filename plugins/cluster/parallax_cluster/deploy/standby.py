"""Runs a standby: follows a cluster's coordinator until promoted, and returns its last state."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import msgspec
from filelock import FileLock, Timeout

from parallax_cluster.config.home import plan_file, standby_file, term_file, term_key_file
from parallax_cluster.config.run import RunSettings
from parallax_cluster.deploy.join_codes import get_method
from parallax_cluster.deploy.joined import JoinedHead
from parallax_cluster.deploy.joining import Joiner
from parallax_cluster.deploy.signing_key import ensure_signing_key
from parallax_cluster.deploy.succession import adopt_settings, recall_plan
from parallax_cluster.membership.standby_state import StandbyState
from parallax_cluster.membership.term_proof import judge, read_proof
from parallax_cluster.node.coordinator.plan_store import PlanStore
from parallax_cluster.node.membership.standby import Candidacy, Follower
from parallax_cluster.node.membership.term_store import TermStore
from parallax_core.api import HEAD, ParallaxError, PeerLost, TransportPlan, TransportSpec, UsageError
from parallax_core.api.deployment import Catalog, Offer, PluginHost
from parallax_core.api.node import replace_file

logger = logging.getLogger(__name__)

PROMOTION = signal.SIGUSR1
"""Tells the process of a standby to take over."""
LOCK_S = 5.0


class StandbyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The standby that runs on this machine."""

    pid: int
    address: str
    """Of the coordinator that it follows."""
    model: str = ""
    """Empty: it has heard nothing yet."""
    term: int = 0
    is_linked: bool = False
    """Whether the coordinator is there."""
    is_accepted: bool = True
    """Whether the coordinator has accepted this machine, so that it can prove its term."""


def find_standby() -> StandbyRecord | None:
    """Return the standby that runs on this machine, or None."""
    try:
        with FileLock(standby_file().with_suffix(".lock"), timeout=0):
            return None
    except Timeout:
        return msgspec.json.decode(standby_file().read_bytes(), type=StandbyRecord)
    except OSError:  # there is no such folder
        return None


def wait_for_promotion(settings: RunSettings, plugins: PluginHost) -> RunSettings:
    """Follow a coordinator until this machine is to take its place; return the settings with which to serve then.

    A machine that has taken its place before serves at once, so that it may be started again as it was.

    Raises:
        UsageError: if the address at which other machines would join is not known beforehand.
        ParallaxError: if the coordinator cannot be joined, or another standby runs here.
    """
    joiner = Joiner(plugins, looks_around=settings.discovery)
    taken = find_taken_over(joiner.recognise(settings.standby_of))
    try:
        joined = joiner.join(settings.standby_of)
    except PeerLost:
        if taken is None:
            raise
        return _serve_again(settings, taken)
    link = make_link(settings, plugins, joined)
    if taken is not None and not asyncio.run(link.is_newer(taken)):
        return _serve_again(settings, taken)
    logger.info("standby of %s; `parallax cluster promote` has it take over", joined.address)
    with _recorded(joined):
        while True:
            state = asyncio.run(link.follow())
            try:
                TermStore(term_file()).keep(state)
                break
            except ParallaxError as error:  # without it, nodes would refuse this machine after a restart
                logger.error("cannot take over: %s; %s", error.message, error.hint)  # noqa: TRY400 -- no bug
    _keep_plan(Catalog(plugins).qualify(state.model), state)
    logger.info("taking over model=%s term=%d", state.model, state.term)
    return adopt_settings(settings, state)


def find_taken_over(key: bytes) -> StandbyState | None:
    """Return the state with which this machine took over from the coordinator of a key; None: it has not.

    It is None, too, if another coordinator has taken over since: then it is a standby again.

    Raises:
        ParallaxError: if the state cannot be read.
    """
    state = TermStore(term_file()).find()
    if state is None or not key or state.predecessor != key or state.newer:
        return None
    return state


def _serve_again(settings: RunSettings, taken: StandbyState) -> RunSettings:
    logger.info("this machine has taken over from %s before, in term %d", settings.standby_of, taken.term)
    return adopt_settings(settings, taken)


def _keep_plan(model: str, state: StandbyState) -> None:
    """Keep the plan with which this machine begins."""
    store = PlanStore(plan_file())
    try:
        store.save(model, recall_plan(state))
        store.save_loaded(model, state.other_models)
        for machine in state.drained:
            store.note_drained(machine, is_drained=True)
    except ParallaxError as error:  # it serves all the same
        logger.warning("%s; nodes may have to load other layers", error.message)


@contextmanager
def _recorded(joined: JoinedHead) -> Iterator[None]:
    """Keep a record of this process, so that `parallax cluster promote` finds it."""
    with ExitStack() as stack:
        try:
            standby_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(FileLock(standby_file().with_suffix(".lock"), timeout=LOCK_S))
        except Timeout as error:
            raise ParallaxError("another standby runs on this machine", "give it a PARALLAX_HOME of its own") from error
        except OSError as error:  # it follows all the same
            logger.warning("`parallax cluster promote` will not find this standby: %s", error)
        _write(StandbyRecord(pid=os.getpid(), address=joined.address))
        try:
            yield
        finally:
            standby_file().unlink(missing_ok=True)


def _write(record: StandbyRecord) -> None:
    try:
        replace_file(standby_file(), msgspec.json.encode(record))
    except OSError as error:  # it follows all the same
        logger.warning("`parallax cluster promote` does not find this standby as it is: %s", error)


@dataclass(frozen=True, slots=True)
class StandbyLink:
    """Links to the coordinator that this machine follows."""

    joined: JoinedHead
    key: bytes
    """The key that the coordinator proves."""
    candidacy: Candidacy
    offer: Offer[TransportSpec]
    timeout_s: float

    async def follow(self) -> StandbyState:
        """Follow the coordinator until this process is told to take over; return the state with which to serve.

        Raises:
            ParallaxError: if the coordinator refuses this machine.
        """
        written = StandbyRecord(pid=0, address="")

        def note(state: StandbyState, is_linked: bool) -> None:  # noqa: FBT001 -- a fact, not a choice
            nonlocal written
            if (record := self._describe(state, is_linked=is_linked)) != written:
                written = record
                _write(record)

        async with self._following(note) as follower:
            asyncio.get_running_loop().add_signal_handler(PROMOTION, follower.promote)
            return msgspec.structs.replace(await follower.run(), predecessor=self.key)

    async def is_newer(self, own: StandbyState) -> bool:
        """Return whether the coordinator is there and proves a later term than this machine's, and keep that.

        Raises:
            ParallaxError: if it is there and refuses this machine.
        """
        async with self._following(lambda *_: None) as follower:
            state = await follower.look()
        if state is None or judge(read_proof(own.proof), read_proof(state.proof)) != "newer":
            return False
        TermStore(term_file()).keep(msgspec.structs.replace(own, newer=state.proof))
        return True

    @asynccontextmanager
    async def _following(self, note: Callable[[StandbyState, bool], None]) -> AsyncIterator[Follower]:
        node = f"{self.joined.machine}/standby"
        plan = TransportPlan(node=node, timeout_s=self.timeout_s, heads={HEAD: self.key})
        transport = self.offer.load(self.offer.spec.factory)(plan)
        await transport.start()
        try:
            yield Follower(transport, self.joined.address, node, self.candidacy, note)
        finally:
            await transport.stop()

    def _describe(self, state: StandbyState, *, is_linked: bool) -> StandbyRecord:
        return StandbyRecord(
            pid=os.getpid(),
            address=self.joined.address,
            model=state.model,
            term=state.term,
            is_linked=is_linked,
            is_accepted=self.candidacy.is_accepted(state),
        )


def make_link(settings: RunSettings, plugins: PluginHost, joined: JoinedHead) -> StandbyLink:
    """Return the link by which this machine follows a coordinator that it has joined.

    Raises:
        UsageError: if the address at which other machines would join is not known beforehand.
        ParallaxError: if this machine can have no keys.
    """
    method = get_method(plugins, joined.transport)
    method.prepare(HEAD)
    try:
        head = method.describe_head(HEAD, settings.listen)
        reach = method.list_addresses(head)[0]
    except ParallaxError as error:
        hint = "give the address at which machines are to join this one: --listen tcp://0.0.0.0:9000"
        raise UsageError(f"a standby cannot listen at {settings.listen}: {error.message}", hint) from error
    candidacy = Candidacy(reach, method.find_key(head), ensure_signing_key(term_key_file()))
    offer = plugins.transports().get(joined.transport)
    timeout_s = settings.peer_timeout or offer.spec.timeout_s
    return StandbyLink(joined, method.find_key(joined.head), candidacy, offer, timeout_s)
