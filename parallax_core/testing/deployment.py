"""The kit for kinds of deployments: their plans, their selection, and the nodes of a launcher.

Subclass it in a test module under a name that begins with ``Test``, and give the spec. Nodes are stood in for by small
programs of this machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.deployment import DeploymentSpec, Launch, ServerPlan, WantedNodes
from parallax_core.testing.promise import broken
from parallax_core.testing.runner import in_loop, within

T = TypeVar("T")

NODE = "import os, sys, time; open(os.path.join(sys.argv[1], str(os.getpid())), 'x').close(); time.sleep(3600)"
"""The program that stands in for a node: it notes its process, and does nothing."""
LOOK_S = 0.02
WANTED = 3
PLANS = "Return the plan of a server"
WHERE = "Where its layers are computed, as the server says at its start"
KEYS = "keys of ``[serve]`` with other values"
LISTENS = "starts the nodes of the stages, which need ``listen``"
SELECTED = "Whether a server whose settings, the first argument, name no kind is of this one"
STARTS = "Returns a context in which the nodes run that a server waits for"
ENDS = "it starts them, and ends them when it is left"
AGAIN = "its stage waits until another joins, which the launcher starts"


@dataclass(frozen=True, slots=True)
class NotedPlan:
    """A plan as a kind asked core for it."""

    model: str
    place: str
    launch: Launch | None
    settings: ServeSettings


@dataclass(slots=True)
class NotedRequest:
    """A request that notes the plans that are asked for."""

    settings: ServeSettings
    sections: Sequence[object] = ()
    plans: list[NotedPlan] = field(default_factory=list)

    def read_section(self, schema: type[T]) -> T:
        """Return the section of that type, or its defaults."""
        return next((each for each in self.sections if isinstance(each, schema)), None) or schema()

    def plan(self, *, place: str = "", launch: Launch | None = None, **changed: object) -> NotedPlan:
        """Note a plan, and return it."""
        known = {each.name for each in fields(ServeSettings)}
        unknown = [name for name in changed if name not in known]
        assert not unknown, broken(f"the plan changes {', '.join(unknown)}, and [serve] has no such key", KEYS)
        given: dict[str, Any] = {each: getattr(self.settings, each) for each in known}
        settings = ServeSettings(**{**given, **changed})
        noted = NotedPlan(settings.model, place or "with the best backend", launch, settings)
        self.plans.append(noted)
        return noted


class DeploymentConformance:
    """Tests for a kind of deployment that plans a server."""

    spec: DeploymentSpec
    """The kind under test."""
    settings = ServeSettings(model="org/model", stages=2)
    """The settings of a server of this kind."""
    sections: Sequence[object] = ()
    """The sections of the plugin, each as its dataclass; those that are left out have their defaults."""
    patience_s = 60.0
    """Seconds that a launcher may take to start a node."""

    def make_plan(self) -> tuple[ServerPlan, list[NotedPlan]]:
        """Return the plan of the kind, and those that it has asked core for."""
        assert self.spec.plan is not None, broken("the spec has no plan", PLANS)
        request = NotedRequest(self.settings, self.sections)
        return self.spec.plan.load()(request), request.plans

    def find_launch(self) -> Launch | None:
        """Return the launcher of the kind, or None."""
        return next((each.launch for each in self.make_plan()[1] if each.launch is not None), None)

    def test_plan_says_what_is_served_and_where(self) -> None:
        """A plan with the model of the settings, and a place for the start of the server."""
        plan, _ = self.make_plan()
        assert isinstance(plan, ServerPlan), broken(f"{plan!r} is no plan", PLANS)
        assert plan.model == self.settings.model, broken(f"the plan is of the model {plan.model!r}", PLANS)
        assert plan.place.strip(), broken("the place of the plan is empty", WHERE)

    def test_launcher_has_a_server_that_listens(self) -> None:
        """Nodes that a launcher starts need an address."""
        for plan in self.make_plan()[1]:
            is_heard = plan.launch is None or plan.settings.listen
            assert is_heard, broken("a launcher starts nodes of a server that does not listen", LISTENS)

    def test_kind_is_not_selected_by_settings_that_do_not_concern_it(self) -> None:
        """A server without any settings stays what it is."""
        if self.spec.selects is not None:
            found = self.spec.selects.load()(ServeSettings())
            assert found is False, broken(f"a server with no settings is taken over: {found!r}", SELECTED)

    @in_loop
    async def test_launcher_starts_each_node_and_ends_it(self, tmp_path: Path) -> None:
        """As many nodes as are wanted run in the context, and none after it."""
        if (launch := self.find_launch()) is None:
            return
        async with launch(want_nodes(tmp_path, WANTED)):
            fault = f"{WANTED} nodes are wanted, and another number runs"
            await self._wait_until(lambda: count_running(tmp_path) == WANTED, fault, STARTS)
        left = count_running(tmp_path)
        for each in list_pids(tmp_path):
            kill(each)
        assert left == 0, broken(f"{left} nodes run after their server", ENDS)

    @in_loop
    async def test_node_that_ends_is_started_again(self, tmp_path: Path) -> None:
        """Another takes its place, so that the stage goes on."""
        if (launch := self.find_launch()) is None:
            return
        async with launch(want_nodes(tmp_path, 1)):
            await self._wait_until(lambda: count_running(tmp_path) == 1, "1 node is wanted, and none runs", STARTS)
            [first] = list_pids(tmp_path)
            kill(first)
            fault = "a node has ended, and no other is started"
            await self._wait_until(lambda: len(list_pids(tmp_path)) > 1, fault, AGAIN)

    async def _wait_until(self, condition: Callable[[], bool], fault: str, promise: str) -> None:
        """Wait until something is so; fail with ``fault`` if it never is."""

        async def look() -> None:
            while not condition():  # noqa: ASYNC110 -- the nodes are other processes
                await asyncio.sleep(LOOK_S)

        await within(self.patience_s, look(), fault, promise)


def want_nodes(folder: Path, num_nodes: int) -> WantedNodes:
    """Return nodes that note their processes in a folder."""
    command = (sys.executable, "-c", NODE, str(folder))
    return WantedNodes(num_nodes=num_nodes, address="tcp://127.0.0.1:1", command=command)


def list_pids(folder: Path) -> list[int]:
    """Return the processes of all nodes that were started."""
    return [int(each.name) for each in folder.iterdir()]


def count_running(folder: Path) -> int:
    """Return the number of nodes that run."""
    return sum(map(is_running, list_pids(folder)))


def is_running(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill(pid: int) -> None:
    """Kill a node, if it runs."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
