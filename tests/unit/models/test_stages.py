from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from parallax_core.api import (
    Availability,
    BackendSpec,
    LayerRange,
    LoadedSize,
    ModelShape,
    ModelSpec,
    ParallaxError,
    Ref,
    SettingsSpec,
    Stage,
    StagePlan,
    Unsupported,
    hookimpl,
)
from parallax_core.base.errors import BrokenPlugin, UnknownName, UsageError
from parallax_core.cluster.placement.parallel import ParallelConfig, parse_layers
from parallax_core.config.config import Config
from parallax_core.deploy.layer_weights import place_layers
from parallax_core.models.stages import RoomCheck, open_stage
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.testing.holes import punch_holes
from parallax_core.testing.model import write_checkpoint
from parallax_core.testing.toy import Toy, ToyStage
from tests.conformance.test_model import CONFIG, TinyAdapter

BUILDER = object()


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a backend."""

    threads: int = 4
    mode: Literal["auto", "off"] = "auto"


class Recording:
    """A backend whose stage is the plan it was given."""

    def open_stage(self, plan: StagePlan) -> Any:
        return plan


class Ordinary:
    """A backend that knows nothing of leases, and its last stage."""

    stages: list[ToyStage] = []  # noqa: RUF012 -- a record

    def open_stage(self, plan: StagePlan) -> ToyStage:
        del plan
        self.stages.append(Toy().open())
        return self.stages[-1]


class Leased:
    def open_stage(self, plan: StagePlan) -> Stage:
        del plan
        return Toy().open_leased()


def probe() -> Availability:
    return Availability(ok=True)


def make_host(
    blocks: dict[str, Ref[Any]],
    adapter: str = "tests.conformance.test_model:ADAPTER",
    section: SettingsSpec | None = None,
) -> PluginHost:
    model = ModelSpec(name="tiny", summary="s", architectures=("TinyForCausalLM",), adapter=Ref(adapter), blocks=blocks)

    @hookimpl
    def parallax_register_models() -> list[ModelSpec]:
        return [model]

    @hookimpl
    def parallax_register_backends() -> list[BackendSpec]:
        return [
            BackendSpec(
                name="b",
                summary="s",
                probe=Ref(f"{__name__}:probe"),
                factory=Ref(f"{__name__}:Recording"),
                options=Ref(f"{__name__}:Options"),
            ),
            *(
                BackendSpec(
                    name=name,
                    summary="s",
                    probe=Ref(f"{__name__}:probe"),
                    factory=Ref(f"{__name__}:Recording"),
                    size=Ref(f"{__name__}:{measure}"),
                )
                for name, measure in {"sized": "measure_tiny", "kept": "measure_kept"}.items()
            ),
            *(
                BackendSpec(
                    name=name, summary="s", probe=Ref(f"{__name__}:probe"), factory=Ref(f"{__name__}:{factory}")
                )
                for name, factory in {"plain": "Recording", "ordinary": "Ordinary", "leased": "Leased"}.items()
            ),
        ]

    @hookimpl
    def parallax_register_settings() -> list[SettingsSpec]:
        return [section or SettingsSpec(name="own", summary="s", schema=Ref(f"{__name__}:Options"))]

    plugin = SimpleNamespace(
        parallax_register_models=parallax_register_models,
        parallax_register_backends=parallax_register_backends,
        parallax_register_settings=parallax_register_settings,
    )
    return PluginHost([(PluginRecord(name="p", module="p", distribution="d", version="1", state="loaded"), plugin)])


def open_with(blocks: dict[str, Ref[Any]], folder: Path, architecture: str = "TinyForCausalLM") -> Any:
    (folder / "config.json").write_text(f'{{"architectures": ["{architecture}"]}}')
    host = make_host(blocks)
    return open_stage(host, host.backends().get("b"), StagePlan(model=folder))


def test_blocks_of_an_adapter_reach_the_backend_they_are_for(tmp_path: Path) -> None:
    blocks: dict[str, Ref[Any]] = {"b": Ref(f"{__name__}:BUILDER"), "other": Ref("no.such:Thing")}
    assert open_with(blocks, tmp_path).blocks is BUILDER
    assert open_with(blocks, tmp_path, "Stranger").blocks is None
    assert open_with({"other": Ref("no.such:Thing")}, tmp_path).blocks is None


def test_blocks_that_cannot_be_loaded_name_their_plugin(tmp_path: Path) -> None:
    with pytest.raises(BrokenPlugin, match="d 1"):
        open_with({"b": Ref("no.such:Thing")}, tmp_path)


def test_layers_that_were_not_fetched_never_reach_a_backend(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", {}, {"layer.0.mix": (6,), "layer.1.mix": (6,)})
    punch_holes(folder, lambda name: name == "layer.0.mix")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    host = make_host({}, "tests.conformance.test_model:ADAPTER")
    offer = host.backends().get("b")
    plan = StagePlan(model=folder, layers=LayerRange(0, 1))
    open_stage(host, offer, plan)
    with pytest.raises(ParallaxError, match=r"layers 0-2 of .* not on this machine are layers 1-2"):
        open_stage(host, offer, StagePlan(model=folder, layers=LayerRange(0, 2)))
    with pytest.raises(ParallaxError, match="layers 0-3 of"):
        open_stage(host, offer, StagePlan(model=folder))


def open_stages(host: PluginHost, folder: Path, name: str = "b", **given: object) -> Any:
    (folder / "config.json").write_text("{}")
    return open_stage(host, host.backends().get(name), StagePlan(model=folder, options=given))


def test_options_are_the_defaults_before_anything_is_configured(tmp_path: Path) -> None:
    assert open_stages(make_host({}), tmp_path).options == {"threads": 4, "mode": "auto"}
    assert open_stages(make_host({}), tmp_path, "plain").options == {}


def test_options_of_environment_and_file_reach_the_plan_typed(tmp_path: Path) -> None:
    (tmp_path / "parallax.toml").write_text('[own]\nmode = "off"\nthreads = 2\n')
    host = make_host({})
    host.configure(Config.load(tmp_path / "parallax.toml", {"PARALLAX_OWN__THREADS": "3"}))
    assert open_stages(host, tmp_path).options == {"threads": 3, "mode": "off"}


def test_options_of_a_plan_override_the_configured_ones(tmp_path: Path) -> None:
    assert open_stages(make_host({}), tmp_path, threads=9).options == {"threads": 9, "mode": "auto"}


def test_options_without_a_section_name_what_is_missing(tmp_path: Path) -> None:
    host = make_host({}, section=SettingsSpec(name="other", summary="s", schema=Ref("dataclasses:Field")))
    with pytest.raises(UnknownName, match="Options") as caught:
        open_stages(host, tmp_path)
    assert "parallax_register_settings" in caught.value.hint


def open_to_lease(folder: Path, name: str) -> Stage:
    (folder / "config.json").write_text("{}")
    host = make_host({})
    return open_stage(host, host.backends().get(name), StagePlan(model=folder, leased=True))


def test_stage_that_serves_through_leases_is_opened(tmp_path: Path) -> None:
    assert "leases" in open_to_lease(tmp_path, "leased").info.capabilities


def test_backend_that_ignores_leases_is_refused_and_its_stage_closed(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="the backend 'ordinary' cannot be shared by leases") as caught:
        open_to_lease(tmp_path, "ordinary")
    assert "another backend" in caught.value.hint
    assert Ordinary.stages[-1].closed


def measure_tiny(plan: StagePlan, find_part: Callable[[str], object]) -> LoadedSize:
    assert plan.shape is not None
    assert [find_part(name) for name in ("embedding", "layer.1.mix", "unheard")] == ["before", 1, None]
    return LoadedSize(layers=(40,) * 3, before=20, after=10, is_tied=True, others={"int8": 75, "int4": 38})


def measure_kept(plan: StagePlan, find_part: Callable[[str], object]) -> LoadedSize:
    return replace(measure_tiny(plan, find_part), adapters=(20,) * 3)


@pytest.mark.parametrize(
    ("layers", "free", "fitting"),
    [
        (None, 149, "int8 needs 75 bytes; int4 needs 38 bytes"),
        (None, 60, "int4 needs 38 bytes"),
        (None, 20, "choose a smaller model"),
        (LayerRange(2, 3), 69, "int8 needs 35 bytes; int4 needs 17 bytes"),
        (LayerRange(1, 2), 40, ""),
        (None, 150, ""),
        (None, 0, ""),
    ],
)
def test_model_that_does_not_fit_is_refused_with_the_forms_that_do(
    tmp_path: Path, layers: LayerRange | None, free: int, fitting: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    host = make_host({})
    offer = host.backends().get("sized")
    check = RoomCheck(host, [offer], StagePlan(model=Path(), layers=layers), free)
    if not fitting:
        check(tmp_path)
        return
    with pytest.raises(ParallaxError, match=rf"needs \d+ bytes as sized loads it, and {free} bytes are free") as caught:
        check(tmp_path)
    assert caught.value.hint == fitting


def test_memory_kept_for_adapters_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    host = make_host({})
    offer = host.backends().get("kept")
    RoomCheck(host, [offer], StagePlan(model=Path(), layers=LayerRange(1, 3)), 150)(tmp_path)
    with pytest.raises(ParallaxError, match="needs 150 bytes as kept loads it, 40 bytes of it for adapters") as caught:
        RoomCheck(host, [offer], StagePlan(model=Path(), layers=LayerRange(1, 3)), 149)(tmp_path)
    assert caught.value.hint == "int8 needs 95 bytes; int4 needs 67 bytes"


def test_backend_that_tells_no_size_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    host = make_host({})
    RoomCheck(host, [host.backends().get("plain")], StagePlan(model=Path()), 1)(tmp_path)


class Sharing(TinyAdapter):
    """A family whose last layer reads the keys of the first."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        shape = super().read_shape(config)
        reader = replace(shape.layers[0], kv_width=0, source=0)
        return replace(shape, layers=(*shape.layers[:-1], reader))


SHARING = Sharing()


def test_stage_that_cuts_layers_apart_is_refused_before_a_backend_loads_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    host = make_host({}, f"{__name__}:SHARING")
    offer = host.backends().get("b")
    with pytest.raises(Unsupported, match="between layers 1 and 2: layer 2 reads the keys of layer 0") as caught:
        open_stage(host, offer, StagePlan(model=tmp_path, layers=LayerRange(0, 2)))
    assert caught.value.hint == "run the model in one stage"
    opened: Any = open_stage(host, offer, StagePlan(model=tmp_path, layers=LayerRange(0, 3)))
    assert opened.shape == SHARING.read_shape(CONFIG)


def test_layers_that_are_given_or_shared_out_keep_to_legal_cuts() -> None:
    host = make_host({}, f"{__name__}:SHARING")
    two = ParallelConfig(num_stages=2)
    with pytest.raises(UsageError, match="can be cut into at most 1"):
        place_layers(two, host, CONFIG)
    with pytest.raises(Unsupported, match="between layers 0 and 1: layer 2 reads the keys of layer 0"):
        place_layers(ParallelConfig(num_stages=2, layers=parse_layers("0-1,1-3")), host, CONFIG)
