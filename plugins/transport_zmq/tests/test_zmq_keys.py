from __future__ import annotations

import stat
from pathlib import Path

import pytest
import zmq
from typer.testing import CliRunner
from zmq.utils import z85

from parallax_core.api import ParallaxError
from parallax_transport_zmq.cli import app
from parallax_transport_zmq.keyring import Keyring, derive_public, list_names, parse_key

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
    assert [ring.belongs(KEY, node) for node in ("beta", "beta/x")] == [True, True]
    assert [ring.belongs(KEY, node) for node in ("betas", "x/beta", "default")] == [False, False, False]


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
    with pytest.raises(ParallaxError, match="is no public key") as caught:
        parse_key(text)
    assert caught.value.hint


def test_secret_key_that_others_can_read_is_refused(ring: Keyring) -> None:
    ring.make("alpha")
    path = ring.folder / "own" / "alpha.key"
    path.chmod(0o640)
    with pytest.raises(ParallaxError, match="others can read") as caught:
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
    assert ring.belongs(default.public, "whoever")
    assert not ring.belongs(alpha.public, "whoever")


@pytest.mark.parametrize(
    ("node", "names"), [("a", ("a",)), ("a/b/c", ("a",)), ("../a", ()), ("/a", ()), ("default", ()), ("", ())]
)
def test_names_of_keys_are_read_off_a_node(node: str, names: tuple[str, ...]) -> None:
    assert list_names(node) == names
