"""The settings of a server are shown over HTTP as ``parallax config`` shows them."""

from __future__ import annotations

import pytest

from parallax_core.config.config import Config
from parallax_core.config.source import SettingOrigin, WrittenSetting
from parallax_core.plugins.host import PluginHost
from parallax_operate import plugin
from tests.unit.server.letters import Site


def test_every_setting_is_shown_with_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "given", [])
    with Site() as site:
        assert site.client.get("/v1/settings").status_code == 404
        sections = {"serve": {"port": WrittenSetting(1234, SettingOrigin("flag", "--port"))}}
        host = PluginHost.discover(Config())
        host.configure(Config(sections))
        reply = site.client.get("/v1/settings").json()
        found = {(each["section"], each["key"]): each for each in reply["data"]}
        port, host_address = found["serve", "port"], found["serve", "host"]
        assert (port["value"], port["origin"], port["place"]) == (1234, "flag", "--port")
        assert (host_address["value"], host_address["origin"], host_address["place"]) == ("127.0.0.1", "default", None)
        assert port["description"] == "The port to listen on; 0 takes a free one."
        assert reply["file"] is None
        assert len(reply["data"]) == len(host.explain_settings())
