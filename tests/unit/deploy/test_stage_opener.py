from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from parallax_core.api import Availability, BackendSpec, Machine, Ref, Stage, StagePlan
from parallax_core.base.errors import ParallaxError
from parallax_core.base.ids import Epoch
from parallax_core.config.worker import WorkerSettings
from parallax_core.contracts.progress import silent
from parallax_core.contracts.stage import LayerRange
from parallax_core.deploy import stage_opener
from parallax_core.deploy.stage_opener import FixedStage, StageOpener, make_opener, name_offered
from parallax_core.models.catalog import Catalog
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.worker.allowed_models import ANYTHING
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.testing.toy import Toy
from tests.unit.plugins.site import Site

ASSIGN = StageAssignment(stage=0, layers=None, model="/nowhere/model", backend="mlx").assign(Epoch(1))
HEADER = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(4)
"""A safetensors file with one tensor."""


def test_backend_that_is_missing_is_told_to_the_head(site: Site) -> None:
    del site
    settings = WorkerSettings(connect="inprocess://x", backend="none-such", supervised=True)
    opener = make_opener(settings, PluginHost([]))
    assert opener.names == ()
    with pytest.raises(ParallaxError, match="no backend named 'none-such'"):
        opener.open_stage(ASSIGN, silent)


def test_node_started_by_hand_needs_a_backend(site: Site) -> None:
    del site
    with pytest.raises(ParallaxError, match="no installed backend can run on this machine"):
        make_opener(WorkerSettings(connect="inprocess://x"), PluginHost([]))


class ToyBackend:
    """Opens stages of the toy, and notes what it is asked for."""

    plans: ClassVar[list[StagePlan]] = []

    def open_stage(self, plan: StagePlan) -> Stage:
        self.plans.append(plan)
        return Toy().open(plan.layers)


def probe_cpu() -> Availability:
    """Return that a CPU computes."""
    return Availability(ok=True, device="cpu")


@pytest.mark.parametrize(("memory", "share"), [(None, 0.25), (2**20, 0.0625), (2**40, 0.25)])
def test_limits_reach_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int | None, share: float
) -> None:
    monkeypatch.setattr(Machine, "free_memory", lambda _: 2**22)
    for name, content in {"config.json": b"{}", "tokenizer.json": b"{}", "a.safetensors": bytes(8)}.items():
        (tmp_path / name).write_bytes(content)
    factory = Ref[Any](f"{__name__}:ToyBackend")
    probe = Ref[Any](f"{__name__}:probe_cpu")
    spec = BackendSpec(name="toy", summary="integers", probe=probe, factory=factory)
    record = PluginRecord(name="toy", distribution="toy", version="1", module=__name__, state="loaded")
    role = StageAssignment(
        stage=0, layers=None, model=str(tmp_path), memory_fraction=0.25, max_batch_tokens=99, max_running=7
    )
    ToyBackend.plans.clear()
    opener = StageOpener(PluginHost.discover(), [Offer(spec, record)], allowed=[ANYTHING], memory=memory)
    opener.open_stage(role.assign(Epoch(1)), silent).close()
    [plan] = ToyBackend.plans
    assert (plan.memory_fraction, plan.max_batch_tokens, plan.max_running) == (share, 99, 7)


def test_node_uses_the_memory_that_it_may_claim_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "free_memory", lambda _: 2**22)
    spec = BackendSpec(
        name="toy",
        summary="integers",
        probe=Ref[Any](f"{__name__}:probe_cpu"),
        factory=Ref[Any](f"{__name__}:ToyBackend"),
    )
    record = PluginRecord(name="toy", distribution="toy", version="1", module=__name__, state="loaded")
    opener = StageOpener(PluginHost([]), [Offer(spec, record)])
    assert opener.find_memory() == 2**22
    opener.find_limit = lambda: 2**20
    assert opener.find_memory() == 2**20


def test_node_with_fixed_layers_opens_no_others_and_its_own_copy_of_the_model(tmp_path: Path) -> None:
    for name, content in {"config.json": b"{}", "tokenizer.json": b"{}", "a.safetensors": bytes(8)}.items():
        (tmp_path / name).write_bytes(content)
    spec = BackendSpec(
        name="toy",
        summary="integers",
        probe=Ref[Any](f"{__name__}:probe_cpu"),
        factory=Ref[Any](f"{__name__}:ToyBackend"),
    )
    record = PluginRecord(name="toy", distribution="toy", version="1", module=__name__, state="loaded")
    opener = StageOpener(PluginHost.discover(), [Offer(spec, record)])
    opener.fixed = FixedStage(str(tmp_path), LayerRange(0, 2))
    role = StageAssignment(stage=0, layers=LayerRange(0, 2), model="what/the-head-says")
    ToyBackend.plans.clear()
    opener.open_stage(role.assign(Epoch(1)), silent).close()
    assert [(plan.model, plan.layers) for plan in ToyBackend.plans] == [(tmp_path, LayerRange(0, 2))]
    for layers in (LayerRange(0, 1), LayerRange(1, 2), None):
        with pytest.raises(ParallaxError, match=r"this node runs layers 0-2 of .* only"):
            opener.open_stage(replace(role, layers=layers).assign(Epoch(1)), silent)
    with pytest.raises(ParallaxError, match=r"this node runs layers 0-2 of .* only, not all"):
        opener.prepare_model("what/the-head-says", "toy", silent)


def test_whole_model_is_prepared_with_its_backend_and_content(tmp_path: Path) -> None:
    for name, content in {"config.json": b"{}", "tokenizer.json": b"{}", "a.safetensors": WEIGHTS}.items():
        (tmp_path / name).write_bytes(content)
    spec = BackendSpec(
        name="toy",
        summary="integers",
        probe=Ref[Any](f"{__name__}:probe_cpu"),
        factory=Ref[Any](f"{__name__}:ToyBackend"),
    )
    record = PluginRecord(name="toy", distribution="toy", version="1", module=__name__, state="loaded")
    opener = StageOpener(PluginHost.discover(), [Offer(spec, record)], allowed=("*",), memory=1)
    found = opener.prepare_model(str(tmp_path), "toy", silent)
    assert (found.name, found.folder, dict(found.options)) == ("toy", tmp_path, {})
    assert isinstance(found.backend, ToyBackend)
    assert 0 < found.memory_share < 1
    assert found.weights_parts
    with pytest.raises(ParallaxError, match="this node has no backend 'other'"):
        opener.prepare_model(str(tmp_path), "other", silent)


def test_node_with_a_limit_of_context_prepares_no_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_opener, "find_backends", lambda *_: [])
    opener = make_opener(WorkerSettings(max_context=100), PluginHost([]))
    with pytest.raises(ParallaxError, match="this node has max_context=100, and what serves whole models") as caught:
        opener.prepare_model("org/model", "", silent)
    assert "--max-context" in caught.value.hint


def test_fixed_layers_are_those_of_the_settings(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    del site
    monkeypatch.setattr(stage_opener, "find_backends", lambda *_: [])
    opener = make_opener(WorkerSettings(model="org/model", layers="3-7"), PluginHost([]))
    assert opener.fixed == FixedStage("org/model", LayerRange(3, 7))
    assert make_opener(WorkerSettings(), PluginHost([])).fixed is None


def test_models_of_different_machines_have_one_name(tmp_path: Path) -> None:
    catalog = Catalog(PluginHost.discover())
    names = [name_offered(catalog, model) for model in ("org/model", "hf:org/model", f"{tmp_path}/one/name", "./name")]
    assert names == ["hf:org/model", "hf:org/model", "name", "name"]


def test_backend_the_head_wants_and_the_node_lacks_is_named(site: Site) -> None:
    del site
    with pytest.raises(ParallaxError, match="this node has no backend 'mlx'"):
        StageOpener(PluginHost([]), [], None).open_stage(ASSIGN, silent)


def test_best_backend_alone_is_imported_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    record = PluginRecord(name="toy", distribution="toy", version="1", module=__name__, state="loaded")
    probe, loaded = Ref[Any](f"{__name__}:probe_cpu"), list[str]()
    specs = [BackendSpec(name=name, summary="s", probe=probe, factory=Ref[Any](f"{name}:x")) for name in ("a", "b")]
    monkeypatch.setattr(Offer, "load", lambda _, ref: loaded.append(str(ref)))
    StageOpener(PluginHost([]), [Offer(spec, record) for spec in specs]).warm_up()
    assert loaded == [str(specs[0].factory)]
    StageOpener(PluginHost([]), []).warm_up()
