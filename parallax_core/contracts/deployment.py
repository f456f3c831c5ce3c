"""Kinds of deployments: how a server gets its engines, and how a worker finds its server.

Core has one kind, ``fixed``: the stages that the user chose. Others come from plugins, by
`parallax_register_deployments`: their machines join, are found, or are started by a launcher such as Slurm or Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from parallax_core.base.refs import Ref

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedNodes:
    """The nodes that a server waits for, once it listens for them."""

    num_nodes: int
    """How many it needs: one for each stage of each replica, and the spares."""
    address: str
    """Where it listens, in the notation of its transport."""
    command: tuple[str, ...]
    """The command line that starts one node. It ends when the server does, or by SIGTERM, and then without loss."""


Launch = Callable[[WantedNodes], AbstractAsyncContextManager[None]]
"""Returns a context in which the nodes run that a server waits for: it starts them, and ends them when it is left.

A node that ends meanwhile is lost; its stage waits until another joins, which the launcher starts.
"""


@runtime_checkable
class ServerPlan(Protocol):
    """What a server serves, checked as far as that is possible before its model is on this machine."""

    @property
    def model(self) -> str:
        """The model as the user names it."""

    @property
    def place(self) -> str:
        """Where its layers are computed, as the server says at its start: ``on machines that join``."""


class ServerRequest(Protocol):
    """A server that is about to start; core implements it."""

    @property
    def settings(self) -> Any:  # noqa: ANN401 -- the keys of a section, which docs/reference/config.md lists
        """The settings of ``parallax serve``, by the keys of the section ``[serve]``."""

    def read_section(self, schema: type[T]) -> T:
        """Return a section of the configuration that the plugin declares, by its dataclass; see `Settings.section`."""

    def plan(self, *, place: str = "", launch: Launch | None = None, **changed: object) -> ServerPlan:
        """Return the plan of a server for these settings, with stages that do not change while it runs.

        Args:
            place: where its layers are computed, for the user; empty: as core says it.
            launch: starts the nodes of the stages, which need ``listen``; None: the server does, or an operator.
            changed: keys of ``[serve]`` with other values, such as ``stages=4, listen="tcp://127.0.0.1:0"``.

        Raises:
            ParallaxError: if settings contradict each other, or what they name is not installed or cannot run here.
        """


class WorkerRequest(Protocol):
    """A worker that is about to start; core implements it."""

    @property
    def settings(self) -> Any:  # noqa: ANN401 -- as above
        """The settings of ``parallax worker``, by the keys of the section ``[worker]``."""

    def read_section(self, schema: type[T]) -> T:
        """Return a section of the configuration that the plugin declares, by its dataclass; see `Settings.section`."""

    def run(self, *, keys: Mapping[str, bytes] | None = None, tries: int | None = None, **changed: object) -> None:
        """Run the worker, and return once it was told to end, or its server has sent it away.

        Args:
            keys: the keys of servers to trust, by name; None: those that were exchanged.
            tries: how often it tries to join its server again after a loss; None: for ever.
            changed: keys of ``[worker]`` with other values, such as ``connect``, the address of the server.

        Raises:
            PeerLost: if the server was lost, after all tries.
            ParallaxError: if it cannot join or run.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentSpec:
    """Offers a kind of deployment."""

    name: str
    """What users write as ``deployment`` in ``[serve]`` or ``[worker]``."""
    summary: str
    """One line for ``parallax plugins``."""
    plan: Ref[Callable[[ServerRequest], ServerPlan]] | None = None
    """Plans a server; None: the kind plans no server."""
    selects: Ref[Callable[[Any], bool]] | None = None
    """Whether a server whose settings, the first argument, name no kind is of this one; None: never.

    If several select one, that is an error, which names them.
    """
    work: Ref[Callable[[WorkerRequest], None]] | None = None
    """Runs a worker; None: as any other, for the server at ``connect``."""
    remedy: str = ""
    """What to do if one of its Refs cannot be imported."""
