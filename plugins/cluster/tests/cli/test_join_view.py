from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parallax_cluster.cli.join_view import JoinView, LoadWatch
from parallax_core.base.errors import ParallaxError
from parallax_core.base.ids import Epoch
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.stage import Stage
from parallax_core.node.worker.rejoin import HeadPlace
from parallax_core.wire.membership import Assign

STAGE = Assign(Epoch(1), 0, "mlx", "org/toy", 0, 15, "float32", "", 0.5, 1.0)


@dataclass
class Session:
    """What a `WorkerSession` says of itself."""

    is_leaving: bool = False
    is_joined: bool = True
    is_needed: bool = True
    held: Any = None


@dataclass
class Machine:
    """A machine that has joined, and its view."""

    session: Session = field(default_factory=Session)
    loads: LoadWatch = field(default_factory=LoadWatch)
    now: float = 0.0

    def __post_init__(self) -> None:
        place = HeadPlace("tcp://10.0.0.5:9000", "head", "mini/7")
        self.view = JoinView(place, cast("Any", self.session), self.loads, lambda: self.now)

    async def look(self) -> list[str]:
        return await self.view.look()


async def test_machine_says_whether_it_has_joined() -> None:
    machine = Machine(Session(is_joined=False))
    assert await machine.look() == ["mini/7: connecting to the server at tcp://10.0.0.5:9000"]
    machine.session.is_joined = True
    assert await machine.look() == [
        "mini/7: joined the server at tcp://10.0.0.5:9000",
        "no layers yet: `parallax nodes` shows what the server waits for",
    ]
    machine.session.is_leaving = True
    assert (await machine.look())[0].startswith("mini/7: leaving, ")


async def test_machine_says_what_it_loads_and_how_far_it_is() -> None:
    machine, seen = Machine(), list[list[str]]()

    stage = cast("Stage", object())

    def open_stage(assign: Assign, progress: Progress) -> Stage:
        seen.append(list(machine.loads.lines.values()))
        progress("load weights", 12_300_000, 98_400_000)
        seen.append(list(machine.loads.lines.values()))
        assert assign == STAGE
        return stage

    assert machine.loads.watch(open_stage)(STAGE, silent) is stage
    what = "loading layers 0-15 of org/toy"
    assert seen == [[what], [f"{what}: load weights: 12.3 of 98.4 MB"]]
    assert (await machine.look())[1].startswith("no layers yet"), "it is not loading any more"


def test_loading_that_fails_is_no_longer_shown() -> None:
    loads = LoadWatch()

    def fail(assign: Assign, progress: Progress) -> Stage:
        raise ParallaxError(f"{assign.model} is damaged", str(progress))

    with pytest.raises(ParallaxError):
        loads.watch(fail)(STAGE, silent)
    assert loads.lines == {}


async def test_machine_says_how_much_it_computes() -> None:
    machine = Machine()
    runtime = SimpleNamespace(num_tokens=1000, num_open=3)
    machine.session.held = SimpleNamespace(assign=STAGE, runtime=runtime)
    assert (await machine.look())[1] == "layers 0-15 of org/toy: 3 requests, 0 tokens/s"
    machine.now, runtime.num_tokens = 2.0, 1100
    assert (await machine.look())[1] == "layers 0-15 of org/toy: 3 requests, 50 tokens/s"
    machine.session.is_needed = False
    assert (await machine.look())[1] == "layers 0-15 of org/toy: loaded, and not in use"
