"""What is said at the start of a command about what leaves the machine."""

from __future__ import annotations

from typing import Any

import pytest

from parallax_core.base.offline import HUB_VARIABLE, OFFLINE_VARIABLE, is_offline
from parallax_core.cli.contacts import tell_contacts
from parallax_core.config.join import JoinSettings
from parallax_core.config.relay import RelayCommandSettings
from parallax_core.config.run import RunSettings
from parallax_core.config.serve import ServeSettings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (OFFLINE_VARIABLE, HUB_VARIABLE):  # set first, so that both are restored
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)


@pytest.mark.parametrize(
    ("settings", "listens", "said"),
    [
        (RunSettings(), True, ["29753", "29754 and 29755", "huggingface.co"]),
        (RunSettings(discovery=False, stun_port=0), True, ["huggingface.co"]),
        (ServeSettings(), False, ["huggingface.co"]),
        (JoinSettings(), False, ["29753", "links are made to the server", "huggingface.co"]),
        (JoinSettings(discovery=False), False, ["links are made to the server", "huggingface.co"]),
        (RelayCommandSettings(), True, ["29753", "links are made to the server", "29754 and 29755"]),
        (RelayCommandSettings(discovery=False, stun_port=0), True, ["links are made to the server"]),
        (RelayCommandSettings(offline=True), True, ["offline"]),
        (JoinSettings(offline=True), False, ["offline"]),
        (RunSettings(offline=True), True, ["offline"]),
    ],
)
def test_each_command_says_what_leaves_the_machine(
    capsys: pytest.CaptureFixture[str], settings: Any, listens: bool, said: list[str]
) -> None:
    tell_contacts(settings, listens=listens)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(said)
    assert all(line.startswith("network: ") and words in line for line, words in zip(lines, said, strict=True))
    assert is_offline() == settings.offline


def test_what_is_said_says_how_to_turn_it_off(capsys: pytest.CaptureFixture[str]) -> None:
    tell_contacts(RunSettings(), listens=True)
    assert all("(off: --" in line for line in capsys.readouterr().err.splitlines())


def test_mirror_of_the_hub_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example:8443/hub")
    tell_contacts(ServeSettings())
    assert "from mirror.example," in capsys.readouterr().err


def test_variable_has_the_same_effect_as_the_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OFFLINE_VARIABLE, "true")
    tell_contacts(ServeSettings())
    assert capsys.readouterr().err.startswith("network: offline")
