from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import StagePlan
from parallax_core.deploy.additions import NOTHING, Additions
from parallax_core.deploy.backend_options import prepare_plugins
from parallax_core.deploy.executors import LocalStages, RemoteStages
from parallax_core.deploy.stage_options import StageOptions, collect_advice, read_stage_options
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.pipeline.options import PipelineOptions
from tests.unit.deploy.test_backend_options import ABACUS
from tests.unit.node.cluster import open_registry
from tests.unit.plugins.site import Site

CONFIG = {"num_hidden_layers": 4, "hidden_size": 8, "model_type": "llama"}
LISTEN = "tcp://127.0.0.1:0"


@pytest.fixture
def home(site: Site) -> Path:
    """Install two backends, of which one has advice, and return an empty folder."""
    site.install("abacus", ABACUS)
    site.install("bare", ABACUS.replace('device="wood"', 'device="tin", advice="oil it"'))
    folder = site.folder.resolve() / "model"
    folder.mkdir()
    (folder / "config.json").write_text(str(CONFIG).replace("'", '"'))
    return folder


def read(added: Additions = NOTHING, **given: Any) -> StageOptions:
    settings = ServeSettings(**{"model": "org/model", "backend": "abacus", **given})
    return read_stage_options(settings, prepare_plugins(settings, Config()), added)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({}, "with abacus on wood"),
        ({"stages": 2}, "with abacus on wood"),
        ({"backend": "bare,abacus", "stages": 2}, "with bare on tin and abacus on wood; each stage keeps its layers"),
        ({"backend": "bare,abacus", "layers": "0-1,1-4"}, "with bare on tin and abacus on wood"),
        ({"stages": 2, "device": ("a", "b")}, "with abacus on wood; each stage keeps its layers"),
        ({"data_parallel": 2, "device": ("a", "b")}, "with abacus on wood"),
        ({"listen": LISTEN}, "on machines that join"),
        ({"listen": LISTEN, "stages": 2}, "on machines that join; each stage keeps its layers"),
        ({"listen": LISTEN, "layers": "0-1,1-4"}, "on machines that join"),
        ({"backend": "far", "python": ("far=/bin/python",)}, "with far"),
    ],
)
def test_user_is_told_where_stages_are_and_whether_their_layers_stay(
    home: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], place: str
) -> None:
    monkeypatch.setattr(
        "parallax_core.deploy.stage_options.read_pythons", lambda settings, _: dict(map(split, settings.python))
    )
    assert read(**given).place == place


def split(text: str) -> tuple[str, str]:
    name, _, python = text.partition("=")
    return name, python


def balance(executor: RemoteExecutor, *_: object) -> RemoteExecutor:
    return executor


@pytest.mark.parametrize(
    ("given", "is_balanced"),
    [
        ({"stages": 2}, False),
        ({"stages": 2, "backend": "bare,abacus"}, True),
        ({"stages": 2, "device": ("a", "b")}, True),
        ({"stages": 2, "listen": LISTEN}, True),
        ({"layers": "0-1,1-4", "listen": LISTEN}, False),
        ({"listen": LISTEN}, False),
    ],
)
async def test_layers_are_balanced_where_stages_may_differ(
    home: Path, given: dict[str, Any], is_balanced: bool
) -> None:
    async with open_registry() as registry:
        for added in (Additions(), Additions(balance=balance)):
            options = read(added, **given)
            assert ("keeps its layers" in options.place) is (is_balanced and added.balance is None)
            stages = options.make_stages(StagePlan(model=home), options.choose_offers(CONFIG), home, registry=registry)
            assert isinstance(stages, RemoteStages)
            assert (stages.balance is not None) is (is_balanced and added.balance is not None)


async def test_stages_in_this_process_have_the_whole_memory_and_workers_share_it(home: Path) -> None:
    plan = StagePlan(model=home, memory_fraction=0.6)
    alone = read()
    assert not alone.uses_workers
    stages = alone.make_stages(plan, alone.choose_offers(CONFIG), home)
    assert isinstance(stages, LocalStages)
    assert (stages.plan, [offer.spec.name for offer in stages.offers]) == (plan, ["abacus"])
    async with open_registry() as registry:
        for given, share in (
            ({"stages": 2}, 0.3),
            ({"stages": 2, "data_parallel": 2, "spares": 2}, 0.1),
            ({"listen": LISTEN, "stages": 2, "spares": 1}, 0.6),
        ):
            options = read(**given)
            assert options.uses_workers
            remote = options.make_stages(plan, options.choose_offers(CONFIG), home, registry=registry)
            assert isinstance(remote, RemoteStages)
            assert remote.plan.memory_fraction == pytest.approx(share)
            assert remote.registry is registry
            assert (remote.spares is not None) is ("spares" in given)
            assert (remote.supervisor is None) is ("listen" in given)


async def test_nodes_find_the_model_by_its_folder_here_and_by_its_name_elsewhere(home: Path) -> None:
    async with open_registry() as registry:
        for given, model, backends in (
            ({"stages": 2}, str(home), ("abacus", "abacus")),
            ({"stages": 2, "listen": LISTEN}, "org/model", ("abacus", "abacus")),
            ({"stages": 2, "listen": LISTEN, "backend": None}, "org/model", ("", "")),
        ):
            options = read(**given)
            stages = options.make_stages(StagePlan(model=home), options.choose_offers(CONFIG), home, registry=registry)
            assert isinstance(stages, RemoteStages)
            assert (stages.model, stages.backends) == (model, backends)
        options = read(stages=2)
        named = options.make_stages(StagePlan(model=home), options.choose_offers(CONFIG), home, "by name", registry)
        assert isinstance(named, RemoteStages)
        assert named.model == "by name"


@pytest.mark.parametrize(
    ("given", "peer_s", "heartbeat_s"),
    [({}, 2.5, 1.0), ({"peer_timeout": 2.0}, 2.0, 1.0), ({"peer_timeout": 0.5}, 0.5, 0.25)],
)
async def test_stage_beats_at_least_twice_before_it_counts_as_lost(
    home: Path, given: dict[str, Any], peer_s: float, heartbeat_s: float
) -> None:
    options = read(stages=2, min_peer_timeout=0.3, **given)
    async with open_registry() as registry:
        stages = options.make_stages(StagePlan(model=home), options.choose_offers(CONFIG), home, registry=registry)
    assert isinstance(stages, RemoteStages)
    assert (options.peer_timeout, stages.heartbeat_s, stages.min_peer_timeout) == (peer_s, heartbeat_s, 0.3)
    role = stages.assign(1, None, PipelineOptions(), "tin")
    assert (role.stage, role.backend, role.device, role.heartbeat_s) == (1, "abacus", "tin", heartbeat_s)
    assert role.min_timeout_s == 0.3


async def test_worker_of_another_environment_reads_no_section_of_this_one(home: Path) -> None:
    async with open_registry() as registry:

        def command(options: StageOptions) -> list[str]:
            stages = options.make_stages(StagePlan(model=home), options.choose_offers(CONFIG), home, registry=registry)
            assert isinstance(stages, RemoteStages)
            assert stages.supervisor is not None
            return list(stages.supervisor.command("worker/0/0"))

        options, empty = read(stages=2, backend_option=("beads=3",)), home / "empty.toml"
        here = command(options)
        assert here[here.index("--transport") + 1 :][:1] == ["zmq"]
        assert here[here.index("--peer-timeout") + 1] == "2.5"
        assert here[here.index("--backend-option") + 1] == "beads=3"
        assert ("--config" in here, empty.exists()) == (False, False)
        elsewhere = command(replace(options, pythons={"abacus": "/other/python"}))
        assert elsewhere[0] == "/other/python"
        assert elsewhere[elsewhere.index("--backend-option") + 1] == "beads=3"
        assert elsewhere[elsewhere.index("--config") + 1] == str(empty)
        assert empty.read_text() == ""


def test_advice_is_that_of_each_backend_once(home: Path) -> None:
    def offers(**given: Any) -> Any:
        return read(**given).choose_offers(CONFIG)

    assert collect_advice(offers()) == ()
    assert collect_advice(offers(backend="bare,abacus,bare", stages=3)) == ("oil it",)
    assert collect_advice(offers(listen=LISTEN, stages=2)) == ()


def test_backend_is_chosen_by_the_model_only_where_the_user_names_none(home: Path) -> None:
    assert [offer and offer.spec.name for offer in read(stages=2).choose_offers(CONFIG)] == ["abacus"] * 2
    assert read(listen=LISTEN).choose_offers(CONFIG) == (None,)
