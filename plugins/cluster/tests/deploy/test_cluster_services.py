from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from parallax_cluster.deploy.cluster_services import make_further, make_record, make_terms
from parallax_core.api import TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.config.worker import WorkerSettings
from parallax_core.deploy.node_services import WorkerContext
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.rejoin import HeadPlace


def make_context(node: str, *, supervised: bool = False) -> WorkerContext:
    """Return a node that has loaded nothing."""
    settings = WorkerSettings(connect="inprocess://head", supervised=supervised)
    services = NodeServices(InProcessTransport(TransportPlan(node=node)))
    place = HeadPlace("inprocess://head", "head", node)
    nothing = cast("Any", None)
    return WorkerContext(node, services, settings, nothing, None, nothing, {}, nothing, place, nothing)


@pytest.mark.parametrize(("node", "starts"), [("attic/1", True), ("attic/1+2", False)])
def test_node_starts_further_nodes_unless_it_is_one(node: str, starts: bool) -> None:
    assert (make_further(make_context(node)) is not None) == starts


@pytest.mark.parametrize("supervised", [False, True])
def test_node_that_a_server_started_has_no_record_and_no_terms(
    supervised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    context = make_context("attic/1", supervised=supervised)
    assert (make_record(context) is None) == (make_terms(context) is None) == supervised
