"""What `parallax serve --find` makes of its settings, with the real plugins and a rendezvous over TCP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from parallax_cluster.deploy.found import FoundPlan
from parallax_cluster.membership.announcement import ClusterSecret
from parallax_cluster.membership.join_code import JoinCode, read_code, write_code
from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.deploy.fixed import FixedPlan
from parallax_core.deploy.kinds import ServePlan, read_serve_plan
from parallax_core.plugins.host import PluginHost
from tests.unit.deploy.local_rendezvous import at_home, hosting
from tests.unit.node.cluster import soon

CODE = write_code(JoinCode(transport="zmq", secret=bytes(16), head=b"k" * 32 + b"127.0.0.1:1"))


def read(**given: Any) -> ServePlan:
    return read_serve_plan(ServeSettings(**{"model": "hf:org/model", **given}), PluginHost.prepare(Config()))


async def test_server_that_finds_its_nodes_listens_near_the_rendezvous(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as (_, code):
        with at_home(tmp_path / "head"):
            plan = await soon(asyncio.to_thread(read, find=(code,), port=7))
            assert isinstance(plan, FoundPlan)
            settings = plan.deployment.settings
            assert (settings.listen, settings.transport) == ("tcp://127.0.0.1:0", "zmq")
            assert (plan.model, plan.address) == ("hf:org/model", ("127.0.0.1", 7))
            assert plan.codes.secrets == (ClusterSecret(read_code(code).secret),)
            given = await soon(asyncio.to_thread(read, find=(code,), listen="tcp://10.0.0.5:1", transport="zmq"))
            assert isinstance(given, FoundPlan)
            assert given.deployment.settings.listen == "tcp://10.0.0.5:1"


def test_without_codes_the_user_chooses_the_stages(tmp_path: Path) -> None:
    with at_home(tmp_path):
        assert isinstance(read(stages=2), FixedPlan)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"stages": 2}, "--stages and --find contradict each other"),
        ({"layers": "0-2,2-4"}, "--layers and --find contradict each other"),
        ({"data_parallel": 2}, "--data-parallel and --find contradict each other"),
        ({"spares": 1}, "--spares and --find contradict each other"),
        ({"device": ("cpu",)}, "--device and --find contradict each other"),
        ({"transport": "lattica"}, "of the transport 'zmq', and --transport says 'lattica'"),
        ({"find": ("plx1x",)}, "the join code is damaged"),
    ],
)
def test_settings_that_do_not_fit_are_told(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    with at_home(tmp_path), pytest.raises(UsageError, match=told):
        read(**{"find": (CODE,), **given})


def test_rendezvous_that_is_not_there_is_told(tmp_path: Path) -> None:
    with at_home(tmp_path), pytest.raises(ParallaxError, match="no server answers at"):
        read(find=(CODE,))
