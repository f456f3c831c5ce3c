"""Runs a standby: follows the coordinator of a cluster until `parallax promote`, and returns with what it was."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from filelock import FileLock, Timeout

from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.base.ids import HEAD
from parallax_core.cluster.membership.standby_state import StandbyState
from parallax_core.config.home import plan_file, standby_file, term_file
from parallax_core.config.run import RunSettings
from parallax_core.contracts.transport import TransportPlan
from parallax_core.deploy.join_codes import get_method
from parallax_core.deploy.joined import JoinedHead
from parallax_core.deploy.joining import Joiner
from parallax_core.deploy.succession import adopt_settings, recall_plan
from parallax_core.models.catalog import Catalog
from parallax_core.node.coordinator.plan_store import PlanStore
from parallax_core.node.membership.standby import Follower
from parallax_core.node.membership.term_store import TermStore
from parallax_core.plugins.host import PluginHost

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


def find_standby() -> StandbyRecord | None:
    """Return the standby that runs on this machine; None: there is none."""
    try:
        with FileLock(standby_file().with_suffix(".lock"), timeout=0):
            return None
    except Timeout:
        return msgspec.json.decode(standby_file().read_bytes(), type=StandbyRecord)
    except OSError:  # there is no such folder
        return None


def wait_for_promotion(settings: RunSettings, plugins: PluginHost) -> RunSettings:
    """Follow a coordinator until this machine is to take its place; return the settings with which to serve then.

    Raises:
        UsageError: if the address at which other machines would join is not known beforehand.
        ParallaxError: if the coordinator cannot be joined, or another standby runs here.
    """
    joiner = Joiner(plugins, looks_around=settings.discovery)
    joined = joiner.join(settings.standby_of)
    method = get_method(plugins, joined.transport)
    method.prepare(HEAD)
    try:
        reach = method.list_addresses(method.describe_head(HEAD, settings.listen))[0]
    except ParallaxError as error:
        hint = "give the address at which machines are to join this one: --listen tcp://0.0.0.0:9000"
        raise UsageError(f"a standby cannot listen at {settings.listen}: {error.message}", hint) from error
    logger.info("standby of %s; `parallax promote` has it take over", joined.address)
    with _recorded(joined):
        state = asyncio.run(_follow(joined, joiner.find_key(joined), reach, settings, plugins))
    TermStore(term_file()).keep(state)
    store, model = PlanStore(plan_file()), Catalog(plugins).qualify(state.model)
    store.save(model, recall_plan(state))
    store.save_loaded(model, state.other_models)
    logger.info("taking over model=%s term=%d", state.model, state.term)
    return adopt_settings(settings, state)


@contextmanager
def _recorded(joined: JoinedHead) -> Iterator[None]:
    """Keep a record of this process, so that `parallax promote` finds it."""
    standby_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with FileLock(standby_file().with_suffix(".lock"), timeout=LOCK_S):
            _write(StandbyRecord(pid=os.getpid(), address=joined.address))
            try:
                yield
            finally:
                standby_file().unlink(missing_ok=True)
    except Timeout as error:
        raise ParallaxError("another standby runs on this machine", "give it a PARALLAX_HOME of its own") from error


def _write(record: StandbyRecord) -> None:
    draft = standby_file().with_suffix(f".{os.getpid()}")
    draft.write_bytes(msgspec.json.encode(record))
    draft.replace(standby_file())


async def _follow(
    joined: JoinedHead, heads: dict[str, bytes], reach: str, settings: RunSettings, plugins: PluginHost
) -> StandbyState:
    offer, node = plugins.transports().get(joined.transport), f"{joined.machine}/standby"
    timeout_s = settings.peer_timeout or offer.spec.timeout_s
    transport = offer.load(offer.spec.factory)(TransportPlan(node=node, timeout_s=timeout_s, heads=heads))
    written = StandbyRecord(pid=0, address="")

    def note(state: StandbyState, is_linked: bool) -> None:  # noqa: FBT001 -- a fact, not a choice
        nonlocal written
        record = StandbyRecord(
            pid=os.getpid(), address=joined.address, model=state.model, term=state.term, is_linked=is_linked
        )
        if record != written:
            written = record
            _write(record)

    await transport.start()
    try:
        follower = Follower(transport, joined.address, node, reach, note)
        asyncio.get_running_loop().add_signal_handler(PROMOTION, follower.promote)
        return await follower.run()
    finally:
        await transport.stop()
