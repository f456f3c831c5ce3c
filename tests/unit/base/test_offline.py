"""The switch by which nothing is contacted but what a user names."""

from __future__ import annotations

import pytest

from parallax_core.base.offline import HUB_VARIABLE, OFFLINE_VARIABLE, go_offline, is_offline


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("true", True), ("ON", True), ("0", False), ("", False)])
def test_variable_is_a_switch(monkeypatch: pytest.MonkeyPatch, value: str, *, offline: bool) -> None:
    monkeypatch.setenv(OFFLINE_VARIABLE, value)
    assert is_offline() == offline


def test_processes_that_are_started_inherit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environment)
    assert not is_offline()
    go_offline()
    assert is_offline()
    assert environment == {OFFLINE_VARIABLE: "1", HUB_VARIABLE: "1"}
