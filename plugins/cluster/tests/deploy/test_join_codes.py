"""Codes that cannot be kept, such as on a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_cluster.config.home import cluster_file
from parallax_cluster.deploy.join_codes import make_code, make_code_of, note_listening, try_code_of
from parallax_cluster.membership.join_code import JoinCode, read_code
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_core.base.errors import ParallaxError
from parallax_core.config.config import Config
from parallax_core.contracts.joining import ListeningHead
from parallax_core.plugins.host import PluginHost

HEAD = ListeningHead("zmq", bytes(32) + b"10.0.0.5:9000")


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginHost:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    return PluginHost.prepare(Config())


def test_code_is_kept_with_its_lifetime(plugins: PluginHost) -> None:
    assert try_code_of(HEAD, plugins, 60.0).startswith("plx1")
    [kept] = CodeStore(cluster_file()).list_codes()
    assert (kept.expires - kept.created, kept.most_uses) == (60.0, 0)


def test_server_goes_on_without_codes_that_cannot_be_kept(
    plugins: PluginHost, caplog: pytest.LogCaptureFixture
) -> None:
    cluster_file().parent.mkdir(parents=True)
    cluster_file().write_bytes(b"no database" * 100)
    assert try_code_of(HEAD, plugins, 60.0) == ""
    assert "no join code is made: the join codes in" in caplog.text
    offer = plugins.transports().get("zmq")
    (keys := cluster_file().parents[1] / "keys").mkdir()
    assert keys.is_dir()
    offer.load(offer.spec.joining)().prepare("head")  # type: ignore[arg-type]
    listening = note_listening(offer, "tcp://10.0.0.5:9000")
    assert listening is not None
    assert listening.transport == "zmq"
    assert "`parallax cluster codes new` may make codes for an earlier server" in caplog.text


def test_code_is_made_for_the_head_that_listened_last(plugins: PluginHost) -> None:
    with pytest.raises(ParallaxError, match="no server of this machine has listened for nodes yet"):
        make_code(plugins, 60.0, 3)
    store = CodeStore(cluster_file())
    for head in (ListeningHead("zmq", b"an earlier one"), HEAD):
        store.note_head(head)
    text, record = make_code(plugins, 60.0, 3)
    [kept] = store.list_codes()
    assert (kept, record.expires - record.created, record.most_uses) == (record, 60.0, 3)
    code = read_code(text)
    assert (code.transport, code.head) == ("zmq", HEAD.head)
    other, _ = make_code_of(HEAD, plugins, 60.0, 0)
    assert read_code(other) != code
    assert len(store.list_codes()) == 2
    assert isinstance(code, JoinCode)
