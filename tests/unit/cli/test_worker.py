from __future__ import annotations

import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.base.ids import Epoch
from parallax_core.cli.worker import Opener, make_opener
from parallax_core.config.worker import WorkerSettings, name_node
from parallax_core.contracts.progress import silent
from parallax_core.node.role import Role
from parallax_core.plugins.host import PluginHost
from tests.unit.plugins.site import Site

ASSIGN = Role(stage=0, layers=None, model="/nowhere/model", backend="mlx").assign(Epoch(1))


def test_name_of_a_node_suits_a_key() -> None:
    assert name_node(12).endswith("/12")
    assert 0 < len(name_node(12).partition("/")[0]) <= 64


def test_backend_that_is_missing_is_told_to_the_head(site: Site) -> None:
    del site
    settings = WorkerSettings(connect="inprocess://x", backend="none-such", supervised=True)
    opener = make_opener(settings, PluginHost([]))
    assert opener.names == ()
    with pytest.raises(ParallaxError, match="no backend named 'none-such'"):
        opener.open_stage(ASSIGN, silent)


def test_node_started_by_hand_needs_a_backend(site: Site) -> None:
    del site
    with pytest.raises(ParallaxError, match="no installed backend can run on this machine"):
        make_opener(WorkerSettings(connect="inprocess://x"), PluginHost([]))


def test_backend_the_head_wants_and_the_node_lacks_is_named(site: Site) -> None:
    del site
    with pytest.raises(ParallaxError, match="there is no backend 'mlx' on this node"):
        Opener(PluginHost([]), [], None).open_stage(ASSIGN, silent)
