from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq
from typer.testing import CliRunner
from zmq.utils import z85

from parallax_core.api import ParallaxError
from parallax_transport_zmq.cli import app
from parallax_transport_zmq.keyfile import derive_public, parse_key
from parallax_transport_zmq.keyring import Keyring, list_names

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def run(*arguments: str) -> str:
    """Run ``parallax keys`` and return what it prints; what it raises is raised."""
    ran = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert ran.exit_code == 0
    return ran.stdout


def test_new_key_is_secret_and_its_public_half_printed(ring: Keyring) -> None:
    printed = run("new").strip()
    pair = ring.find_pair("anybody")
    assert pair
    assert printed == pair.public.hex() == derive_public(pair.secret).hex()
    path = ring.folder / "own" / "default.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, ring.folder)] == [0o700, 0o700]
    assert path.read_text().strip() == pair.secret.hex()
    assert pair.secret.hex() not in repr(pair)


def test_new_key_takes_no_name_that_is_taken(ring: Keyring) -> None:
    first = run("new", "alpha")
    with pytest.raises(ParallaxError, match="'alpha' already"):
        run("new", "alpha")
    assert ring.find_pair("alpha").public.hex() == first.strip()  # type: ignore[union-attr]


def test_keys_are_those_of_zeromq() -> None:
    public, secret = zmq.curve_keypair()
    assert derive_public(z85.decode(secret)) == z85.decode(public)


def test_list_shows_own_and_allowed_keys() -> None:
    own = run("new", "alpha").strip()
    run("allow", KEY.hex(), "beta")
    rows = [line.split() for line in run("list").splitlines()]
    assert rows == [["alpha", "own", own], ["beta", "allowed", KEY.hex()]]


def test_allowed_key_belongs_to_its_name(ring: Keyring) -> None:
    run("allow", KEY.hex(), "beta")
    assert ring.allows(KEY)
    assert ring.find_public("beta") == ring.find_public("beta/stage-1") == KEY
    assert [ring.find_role(KEY, node) for node in ("beta", "beta/x")] == ["any", "any"]
    assert [ring.find_role(KEY, node) for node in ("betas", "x/beta", "default")] == [None, None, None]


def test_removed_key_is_forgotten(ring: Keyring) -> None:
    run("allow", KEY.hex(), "beta")
    run("new", "beta")
    run("remove", "beta")
    assert not ring.allows(KEY)
    assert ring.find_pair("beta")
    run("remove", "--own", "beta")
    assert not ring.find_pair("beta")
    assert not list(ring.list_keys())
    with pytest.raises(ParallaxError, match="no key of another node called 'beta'"):
        run("remove", "beta")


def test_allow_does_not_replace_a_key(ring: Keyring) -> None:
    run("allow", KEY.hex(), "beta")
    run("allow", KEY.hex(), "beta")
    with pytest.raises(ParallaxError, match="another key of 'beta'"):
        run("allow", OTHER.hex(), "beta")
    assert ring.find_public("beta") == KEY


def test_allow_takes_no_key_for_every_name() -> None:
    with pytest.raises(ParallaxError, match="one of this machine's own"):
        run("allow", KEY.hex(), "default")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 65, "ü"])
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    with pytest.raises(ParallaxError, match="cannot be the name of a key"):
        run("allow", KEY.hex(), name)


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "00" * 33, "é" * 64])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ParallaxError, match="is not a public key") as caught:
        parse_key(text)
    assert caught.value.hint


def test_secret_key_that_others_can_read_is_refused(ring: Keyring) -> None:
    ring.make("alpha")
    path = ring.folder / "own" / "alpha.key"
    path.chmod(0o640)
    with pytest.raises(ParallaxError, match="other users can read") as caught:
        ring.find_pair("alpha")
    assert caught.value.hint == f"chmod 600 {path}"


def test_damaged_key_is_refused(ring: Keyring, home: Path) -> None:
    ring.allow(KEY, "beta")
    (home / "keys/known/beta.pub").write_bytes(b"\xff")
    with pytest.raises(ParallaxError, match="holds no key"):
        ring.find_public("beta")


def test_node_takes_the_key_of_its_name_before_the_default(ring: Keyring) -> None:
    default, alpha = ring.make("default"), ring.make("alpha")
    assert ring.find_pair("alpha") == ring.find_pair("alpha/stage-0") == alpha
    assert ring.find_pair("beta") == ring.find_pair("default") == default
    assert ring.find_role(default.public, "whoever") == "any"
    assert ring.find_role(alpha.public, "whoever") is None


@pytest.mark.parametrize(
    ("node", "names"), [("a", ("a",)), ("a/b/c", ("a",)), ("../a", ()), ("/a", ()), ("default", ()), ("", ())]
)
def test_names_of_keys_are_read_off_a_node(node: str, names: tuple[str, ...]) -> None:
    assert list_names(node) == names


def test_allowed_key_has_the_role_it_was_given(ring: Keyring) -> None:
    run("allow", KEY.hex(), "beta", "--role", "worker")
    assert ring.find_role(KEY, "beta/7") == "worker"
    assert run("list").split() == ["beta", "allowed", KEY.hex(), "worker"]
    run("allow", KEY.hex(), "beta", "--role", "head")
    assert ring.find_role(KEY, "beta") == "head"
    run("allow", KEY.hex(), "beta")
    assert ring.find_role(KEY, "beta") == "any"
    ran = CliRunner().invoke(app, ["allow", KEY.hex(), "beta", "--role", "king"])
    assert ran.exit_code == 2


def test_key_file_with_an_unknown_role_is_damaged(ring: Keyring, home: Path) -> None:
    run("allow", KEY.hex(), "beta")
    (home / "keys/known/beta.pub").write_text(f"{KEY.hex()} king\n")
    assert not ring.allows(KEY)


@pytest.mark.parametrize("place", ["", "known", "own", "known/beta.pub"])
def test_keys_that_others_can_write_are_not_allowed(
    ring: Keyring, home: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    ring.make("default")
    run("allow", KEY.hex(), "beta")
    assert ring.find_public("beta") == KEY
    path = home / "keys" / place
    path.chmod(path.stat().st_mode | 0o020)
    for _ in range(3):
        assert not ring.allows(KEY)
    assert caplog.text.count("other users can write") == 1
    with pytest.raises(ParallaxError, match="other users can write to") as caught:
        ring.find_public("beta")
    assert caught.value.hint == f"chmod go-w {path}"
    path.chmod(path.stat().st_mode & ~0o020)
    assert ring.allows(KEY)


def test_keys_are_read_again_only_when_they_have_changed(ring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        ring.allow(bytes([number] * 32), f"node-{number}")
    ring.make("default")
    assert len(list(ring.list_keys())) == 21
    monkeypatch.setattr("parallax_transport_zmq.keyring.read_key", None)
    for _ in range(100):
        assert ring.allows(bytes([19] * 32))
    assert not ring.allows(KEY)
    monkeypatch.undo()
    ring.remove("node-19", own=False)
    assert not ring.allows(bytes([19] * 32))
    ring.allow(KEY, "node-19")
    assert ring.find_role(KEY, "node-19") == "any"


def test_key_of_a_user_is_made_once_by_processes_that_begin_together(ring: Keyring) -> None:
    with ThreadPoolExecutor(8) as pool:
        pairs = set(pool.map(lambda number: Keyring(ring.folder).ensure_pair(f"node/{number}"), range(8)))
    assert len(pairs) == 1
    assert ring.find_pair("anybody") in pairs
    assert stat.S_IMODE((ring.folder / "own/default.key").stat().st_mode) == 0o600
    assert not list(ring.folder.glob("own/*.part"))


def test_key_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ParallaxError, match="no key can be made"):
        Keyring(tmp_path / "file/keys").ensure_pair("near")


def test_keys_of_heads_may_change(tmp_path: Path) -> None:
    heads, one, other = {"head": bytes(32)}, bytes(32), b"\x01" * 32
    keyring = Keyring(tmp_path, heads)
    assert keyring.find_public("head") == one
    heads["head"] = other
    assert keyring.find_public("head") == other
    assert (keyring.find_role(other, "head"), keyring.find_role(one, "head")) == ("head", None)
    heads.clear()
    assert not keyring.allows(other)
