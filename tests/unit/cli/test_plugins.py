from __future__ import annotations

import json

import pytest

from parallax_core.cli.plugins import plugins
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost


def test_plugins_lists_every_kind_of_thing_core_offers(capsys: pytest.CaptureFixture[str]) -> None:
    plugins(as_json=True)
    [core] = [each for each in json.loads(capsys.readouterr().out) if each["name"] == "core"]
    assert core["offers"]["sources"] == ["file", "hf"]
    assert core["offers"]["transports"] == ["inprocess"]
    assert core["offers"]["batching"] == ["work-conserving", "immediate", "size", "delay", "size-or-delay"]
    assert core["offers"]["preemption"] == ["lowest-priority", "newest-first", "nobody"]
    assert core["offers"]["routing"] == ["least-pending-tokens", "round-robin", "prefix-affinity"]


def test_plugins_writes_a_line_for_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    plugins(as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "DISTRIBUTION", "VERSION", "STATE", "OFFERS"]
    assert any(line.startswith("core ") and line.endswith("sources: file, hf") for line in lines)
    assert "transports: inprocess" in [line.strip() for line in lines]


def test_plugin_that_offers_nothing_is_listed_with_its_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = PluginRecord(
        name="bad", distribution="bad", version="1", module="bad", state="broken", reason="boom", remedy="mend it"
    )
    monkeypatch.setattr(PluginHost, "discover", lambda _: PluginHost([(record, None)]))
    plugins(as_json=False)
    written = capsys.readouterr().out
    assert [line.split() for line in written.splitlines()][1] == ["bad", "bad", "1", "broken", "-"]
    assert "bad is broken: boom\n  mend it" in written
