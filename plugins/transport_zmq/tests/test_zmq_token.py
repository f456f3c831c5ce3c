from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parallax_core.api import ParallaxError, PeerLost
from parallax_transport_zmq.cli import app
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.token import PREFIX, make_token, read_token
from tests.support.zmq_nodes import LOOPBACK, plan_node, started

SECRET = bytes(range(32))


def run(*arguments: str, typed: str = "") -> tuple[str, str]:
    """Run ``parallax keys`` and return what it prints and what it says beside; what it raises is raised."""
    ran = CliRunner().invoke(app, arguments, input=typed, catch_exceptions=False)
    assert ran.exit_code == 0
    return ran.stdout.strip(), ran.stderr


def enter(monkeypatch: pytest.MonkeyPatch, home: Path, machine: str) -> Keyring:
    """Go to another machine, as far as keys are concerned."""
    monkeypatch.setenv("PARALLAX_HOME", str(home / machine))
    return Keyring(home / machine / "keys")


@pytest.mark.parametrize("way", ["argument", "input"])
def test_token_carries_the_key_to_another_machine(monkeypatch: pytest.MonkeyPatch, home: Path, way: str) -> None:
    near = enter(monkeypatch, home, "near")
    run("new")
    token, said = run("token")
    assert "may join" in said
    far = enter(monkeypatch, home, "far")
    run("join", token) if way == "argument" else run("join", "-", typed=f"{token}\n")
    assert far.find_pair("anybody") == near.find_pair("whoever") is not None
    path = far.folder / "own" / "default.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert run("join", token)[0] == path.with_suffix(".pub").read_text().strip()  # again is harmless


def test_token_is_the_key_and_a_sum() -> None:
    token = make_token(SECRET)
    assert token == f"{PREFIX}{SECRET.hex()}{token[-8:]}"
    assert read_token(f" {token}\n") == SECRET
    for place in range(len(PREFIX), len(token)):
        changed = f"{token[:place]}{int(token[place], 16) ^ 1:x}{token[place + 1 :]}"
        with pytest.raises(ParallaxError, match="damaged") as caught:
            read_token(changed)
        assert changed not in caught.value.message


@pytest.mark.parametrize("text", ["", PREFIX, SECRET.hex(), f"{PREFIX}zz", make_token(SECRET)[:-2], make_token(b"x")])
def test_what_is_no_token_is_refused(ring: Keyring, text: str) -> None:
    with pytest.raises(ParallaxError, match="join token") as caught:
        run("join", text)
    assert caught.value.hint
    assert ring.find_pair("anybody") is None


def test_join_replaces_another_key_only_when_told_to(ring: Keyring) -> None:
    own = run("new")[0]
    with pytest.raises(ParallaxError, match="another key 'default'") as caught:
        run("join", make_token(SECRET))
    assert "--force" in caught.value.hint
    assert ring.find_pair("anybody").public.hex() == own  # type: ignore[union-attr]
    run("join", "--force", make_token(SECRET))
    assert ring.find_pair("anybody").secret == SECRET  # type: ignore[union-attr]


def test_token_of_a_machine_without_a_key_is_none() -> None:
    with pytest.raises(ParallaxError, match="no key 'default'") as caught:
        run("token")
    assert "parallax keys new" in caught.value.hint


async def test_machines_that_share_a_token_talk_and_others_do_not(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    enter(monkeypatch, home, "near")
    run("new")
    token, _ = run("token")
    async with started(plan_node("head", LOOPBACK)) as head:
        enter(monkeypatch, home, "far")
        run("join", token)
        async with started(plan_node("mini/7")) as worker:
            there, here = await asyncio.gather(head.accept(), worker.connect(head.address, "head"))
            assert (here.peer, there.peer) == ("head", "mini/7")
        enter(monkeypatch, home, "stranger")
        run("new")
        async with started(plan_node("mini/8", timeout_s=2.0)) as stranger:
            with pytest.raises(PeerLost, match="closed the connection before node 'head' identified itself"):
                await stranger.connect(head.address, "head")
