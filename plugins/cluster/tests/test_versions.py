from __future__ import annotations

from importlib.metadata import version

from parallax_cluster.versions import find_expected, list_versions
from parallax_core.config.config import Config
from parallax_core.plugins.host import PluginHost


def test_versions_of_core_and_plugins_are_listed() -> None:
    found = list_versions(PluginHost.prepare(Config()))
    assert found["parallax-core"] == version("parallax-core")
    assert found["parallax-cluster"] == version("parallax-cluster")


def test_node_is_to_have_the_version_of_the_server_or_of_most_nodes() -> None:
    own = version("parallax-core")
    nodes = [{"parallax-core": "0.0.1", "odd": "1"}, {"parallax-core": "0.0.1", "odd": "2"}, {"odd": "2"}]
    assert find_expected(nodes) == {"parallax-core": own, "odd": "2"}
    assert find_expected([]) == {}
