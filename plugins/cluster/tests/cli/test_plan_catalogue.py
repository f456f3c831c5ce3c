from __future__ import annotations

import tomllib

from parallax_cluster.cli.plan_catalogue import EXAMPLE
from parallax_cluster.placement.devices import DEVICES
from parallax_cluster.placement.link_kinds import KINDS
from parallax_cluster.placement.nodes_file import read_cluster
from tests.unit.cli.command_here import run_here


def test_example_is_a_nodes_file() -> None:
    done = run_here("cluster", "plan", "--example")
    assert (done.returncode, done.stdout) == (0, EXAMPLE)
    cluster = read_cluster(tomllib.loads(done.stdout))
    assert [node.name for node in cluster.nodes] == ["desk", "studio", "rig-gpu0", "rig-gpu1", "attic-1", "attic-2"]
    assert cluster.nodes[1].device.memory == int(512e9 * 0.92)
    assert ("rig-gpu0", "rig-gpu1") in {link.ends for link in cluster.links}


def test_every_device_and_link_is_listed() -> None:
    done = run_here("cluster", "plan", "--devices")
    assert done.returncode == 0
    first = {line.split()[0] for line in done.stdout.splitlines() if line}
    assert {*DEVICES, *KINDS} <= first
    lines = {tuple(line.split()) for line in done.stdout.splitlines()}
    assert ("M3Ultra", "256", "or", "96", "or", "512", "32.7", "819", "large", "Apple") in lines
    assert ("wifi", "4", "300") in lines
