"""What a worker knows of its head, and the worker that a kind of deployment runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from parallax_core.base.errors import UsageError
from parallax_core.config.worker import WorkerSettings, name_node
from parallax_core.contracts.transport import Transport
from parallax_core.node.membership.joined_node import HeldLayers
from parallax_core.node.worker.rejoin import HeadPlace, SeekHead
from parallax_core.plugins.host import PluginHost

T = TypeVar("T")

Beside = Callable[[Transport, HeadPlace], AbstractAsyncContextManager[None]]
"""Gets the transport of a worker, started, and the place of its head."""


@dataclass(frozen=True, slots=True)
class HeadAccess:
    """What a worker knows of its head."""

    keys: Mapping[str, bytes] = field(default_factory=dict)
    """The keys of heads to trust, by name."""
    api_url: str = ""
    """Where clients of this machine use the API of the head; empty: nowhere."""
    beside: Beside | None = None
    """Serves clients of the worker while it runs; None: it has no clients."""
    seek: SeekHead | None = None
    """Finds the head if it is not where it was; None: it is not looked for."""
    fixed: HeldLayers | None = None
    """The only layers that the node runs; None: it runs any."""
    tries: int | None = None
    """How often it tries to join the head again after a loss; None: for ever."""


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """A worker that is about to start; a `WorkerRequest`."""

    settings: WorkerSettings
    plugins: PluginHost
    run_worker: Callable[[WorkerSettings, HeadAccess], None]
    tell: Callable[[], None] = lambda: None
    """Says what leaves this machine by the worker; to be called once its settings are checked."""

    def read_section(self, schema: type[T]) -> T:
        """Return a section of the configuration; see `PluginHost.read_section`."""
        return self.plugins.read_section(schema)

    def run(self, *, keys: Mapping[str, bytes] | None = None, tries: int | None = None, **changed: object) -> None:
        """Run the worker; see `WorkerRequest.run`."""
        try:
            settings = replace(self.settings, **changed)  # type: ignore[arg-type]  # of the types of the fields
        except TypeError as error:
            raise UsageError(
                f"there is no such setting in [worker]: {error}", "`parallax config` lists them"
            ) from error
        if not settings.connect:
            raise UsageError("the address of the server is missing", "give it: --connect tcp://HOST:PORT")
        if keys is None:
            keys = {settings.head: bytes.fromhex(settings.trust_head)} if settings.trust_head else {}
        named = replace(settings, node=settings.node or name_node(os.getpid()))
        self.tell()
        self.run_worker(named, HeadAccess(keys, tries=tries))
