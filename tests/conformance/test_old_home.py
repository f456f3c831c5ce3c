"""A home that was written when the cluster, the dialects and the hub were parts of core works with their distributions.

``tests/data/old_home.json`` has the files of a server, which had planned layers, made join codes and kept a response,
and of a machine that had joined it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from parallax_api_responses.store import ResponseStore
from parallax_cluster.config.home import cluster_file, known_terms_file, plan_file, term_file, term_key_file
from parallax_cluster.config.join import JoinSettings
from parallax_cluster.config.rendezvous import RendezvousSettings
from parallax_cluster.config.run import RunSettings
from parallax_cluster.deploy.join_codes import get_method
from parallax_cluster.deploy.joined import find_joined, list_joined
from parallax_cluster.deploy.signing_key import ensure_signing_key
from parallax_cluster.membership.join_code import read_code
from parallax_cluster.node.coordinator.plan_store import PlanStore
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_cluster.node.membership.term_store import TermStore
from parallax_cluster.node.worker.terms import HeadTerms
from parallax_core.config.config import Config
from parallax_core.config.home import config_folder, keys_folder
from parallax_core.config.serve import ServeSettings
from parallax_core.plugins.host import PluginHost
from parallax_core.server.api_keys import KeyFile, digest_key
from parallax_transport_zmq.keyring import Keyring
from tests.unit.plugins.site import PARALLAX

CONTENT: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data/old_home.json").read_text())
WRITTEN = 1795824060.0
"""When it was written, in seconds since 1970."""
HEAD = "tcp://127.0.0.1:19741"
MACHINES = ["vm", "vm-2"]
"""Those that had joined."""


def write_file(path: Path, content: dict[str, Any]) -> None:
    """Write a file that is kept as text, as bytes in hexadecimal, or as the statements that make a database."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    if "sql" in content:
        with closing(sqlite3.connect(path)) as database:
            database.executescript("\n".join(content["sql"]))
    else:
        path.write_bytes(content["text"].encode() if "text" in content else bytes.fromhex(content["hex"]))


def write_home(folder: Path, owner: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in CONTENT.items():
        if name.startswith(f"{owner}/"):
            write_file(folder / name, content)
    monkeypatch.setenv("PARALLAX_HOME", str(folder / owner))
    return folder / owner


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_home(tmp_path, "server", monkeypatch)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_home(tmp_path, "node", monkeypatch)


def test_configuration_says_what_it_said(server: Path) -> None:
    config = Config.load(config_folder() / "parallax.toml")
    serve = config.read("serve", ServeSettings)
    assert (serve.max_waiting, serve.response_store_size, serve.response_ttl) == (300, 32, 12.5)
    assert (serve.keep_billing_line, serve.untrained_tools, serve.preemption) == (True, False, "newest-first")
    run = config.read("run", RunSettings)
    assert (run.concurrency, run.prompt_tokens, run.known, run.recovery_timeout) == (4, 300, ("smollm2-135m",), 90)
    assert config.read("join", JoinSettings).relay
    assert config.read("rendezvous", RendezvousSettings).code_hours == 48
    PluginHost.prepare(config)


def test_join_codes_admit_machines_until_they_expire(server: Path) -> None:
    code = read_code((server / "join-code").read_text().strip())
    store = CodeStore(cluster_file(), lambda: WRITTEN)
    proof = get_method(PluginHost.prepare(Config()), code.transport).derive_proof(code.secret)
    assert store.knows(proof)
    store.admit(proof, bytes(32))
    assert sorted((each.most_uses, each.num_uses) for each in store.list_codes()) == [(0, 1), (1, 1)]
    head = store.find_head()
    assert head is not None
    assert (head.transport, head.head) == ("zmq", code.head)


def test_keys_are_those_of_before(server: Path) -> None:
    ring = Keyring(keys_folder())
    for name in ("default", "gpu-box"):
        pair = ring.find_pair(name)
        assert pair is not None
        assert pair.public.hex() in CONTENT[f"server/keys/own/{name}.pub"]["text"]
    assert sorted(ring.list_machines()) == MACHINES
    keys = KeyFile(server / "api-keys")
    assert [keys.find_role(digest_key(f"sk-{name}-made-up")) for name in ("admin", "user")] == ["admin", "user"]


def test_coordinator_goes_on_with_its_plan_and_its_term(server: Path) -> None:
    model = "file:/srv/models/tiny"
    plan = PlanStore(plan_file()).find(model)
    [[stage]] = plan.pipelines.values()
    assert (stage.node, stage.layers.start, stage.layers.stop, list(plan.memories)) == ("local/0", 0, 6, ["local/0"])
    assert PlanStore(plan_file()).find_loaded(model) == ()
    state = TermStore(term_file()).find()
    assert state is not None
    assert (state.model, state.term) == ("/srv/models/tiny", 1)
    assert bytes(ensure_signing_key(term_key_file())).hex() == CONTENT["server/cluster/signing.key"]["text"]


async def test_response_is_kept(server: Path) -> None:
    with closing(sqlite3.connect(server / "responses.db")) as database:
        [(name, owner)] = database.execute("SELECT id, owner FROM response").fetchall()
    store = ResponseStore(server / "responses.db", 2**26, 86400.0, lambda: WRITTEN)
    kept = await store.get(owner, name)
    assert kept is not None
    assert json.loads(kept.body)["status"] == "incomplete"
    assert await store.delete(owner, name)
    await store.close()


def test_machine_that_has_joined_finds_its_server(node: Path, caplog: pytest.LogCaptureFixture) -> None:
    [joined] = list_joined()
    assert (joined.address, joined.transport, find_joined(HEAD)) == (HEAD, "zmq", joined)
    assert Keyring(keys_folder()).find_pair("default") is not None
    HeadTerms(HEAD, {}, known_terms_file())
    assert caplog.messages == []


def test_commands_read_it(server: Path) -> None:
    for command in ("config", "codes list"):
        environment = {**os.environ, "PARALLAX_HOME": str(server)}
        done = subprocess.run(
            [PARALLAX, *command.split()], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
