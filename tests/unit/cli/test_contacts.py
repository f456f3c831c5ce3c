"""What is said at the start of a command about what leaves the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.base.offline import HUB_VARIABLE, OFFLINE_VARIABLE, is_offline
from parallax_core.cli.contacts import Contacts, tell_contacts
from parallax_core.cli.serve import find_contacts, run_service
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.plugins.host import PluginHost


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    for name in (OFFLINE_VARIABLE, HUB_VARIABLE):  # set first, so that both are restored
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)


@pytest.mark.parametrize(
    ("contacts", "said"),
    [
        (Contacts(fetches=False), []),
        (Contacts(), ["huggingface.co"]),
        (Contacts(seeks=True, links=True), ["looked for by broadcasts", "links are made", "huggingface.co"]),
        (Contacts(is_found=True, stun_port=500, fetches=False), ["find this one", "500 and 501"]),
    ],
)
def test_each_thing_that_leaves_the_machine_is_said(
    capsys: pytest.CaptureFixture[str], contacts: Contacts, said: list[str]
) -> None:
    tell_contacts(contacts)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(said)
    assert all(line.startswith("network: ") and words in line for line, words in zip(lines, said, strict=True))
    assert not is_offline()


@pytest.mark.parametrize(
    ("settings", "contacts"),
    [
        (ServeSettings(), Contacts()),
        (ServeSettings(listen="tcp://0.0.0.0:9000", stun_port=7), Contacts(is_found=True, stun_port=7)),
        (ServeSettings(find=("plx1",), stun_port=7), Contacts(links=True, seeks=True, is_found=True, stun_port=7)),
        (ServeSettings(find=("plx1",), stun_port=7, discovery=False), Contacts(links=True, stun_port=7)),
    ],
)
def test_server_says_what_its_settings_lead_to(settings: ServeSettings, contacts: Contacts) -> None:
    assert find_contacts(settings) == contacts


def test_server_says_first_what_it_loads_and_nothing_of_the_network_before_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan: Any = SimpleNamespace(model="toy", place="with wood", address=("192.0.2.1", 1))  # no address of this machine
    with pytest.raises(ParallaxError):
        run_service(ServeSettings(), Config(), lambda _: plan, Contacts())
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith(": loading toy with wood")
    assert [line.partition(":")[0] for line in others] == ["network"]

    def fail(host: PluginHost) -> Any:
        raise ParallaxError("no such backend")

    with pytest.raises(ParallaxError, match="no such backend"):
        run_service(ServeSettings(), Config(), fail, Contacts())
    assert capsys.readouterr().err == ""


def test_what_is_said_says_how_to_turn_it_off(capsys: pytest.CaptureFixture[str]) -> None:
    tell_contacts(Contacts(seeks=True, is_found=True, stun_port=1))
    assert all("(off: --" in line for line in capsys.readouterr().err.splitlines())


def test_offline_nothing_else_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    tell_contacts(Contacts(seeks=True, is_found=True, stun_port=1), offline=True)
    assert capsys.readouterr().err.splitlines() == [
        "network: offline: only the addresses that you give, and machines that join, are contacted"
    ]
    assert is_offline()


def test_mirror_of_the_hub_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example:8443/hub")
    tell_contacts(Contacts())
    assert "from mirror.example," in capsys.readouterr().err


def test_variable_has_the_same_effect_as_the_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OFFLINE_VARIABLE, "true")
    tell_contacts(Contacts())
    assert capsys.readouterr().err.startswith("network: offline")


def test_sentence_is_said_once_on_a_machine_and_whenever_more_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    tell_contacts(Contacts())
    capsys.readouterr()
    tell_contacts(Contacts(links=True))
    assert [line[:20] for line in capsys.readouterr().err.splitlines()] == ["network: links are m"]
    tell_contacts(Contacts(links=True))
    assert not capsys.readouterr().err
    tell_contacts(Contacts(links=True), verbose=True)
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_sentences_are_said_again_where_they_cannot_be_noted(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "home" / "told"
    if content is None:
        place.parent.mkdir()
        place.write_bytes(b"")  # a file where a folder is needed
    else:
        place.mkdir(parents=True)
        (place / "network").write_bytes(content)
    tell_contacts(Contacts())
    assert "huggingface.co" in capsys.readouterr().err
