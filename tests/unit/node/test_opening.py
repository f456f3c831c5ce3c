from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallax_core.api import Availability, BackendSpec, ModelSpec, Ref, StagePlan, hookimpl
from parallax_core.base.errors import BrokenPlugin
from parallax_core.node.opening import open_stage
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost

BUILDER = object()


class Recording:
    """A backend whose stage is the plan it was given."""

    def open_stage(self, plan: StagePlan) -> Any:
        return plan


def probe() -> Availability:
    return Availability(ok=True)


def make_host(blocks: dict[str, Ref[Any]]) -> PluginHost:
    model = ModelSpec(
        name="tiny", summary="s", architectures=("TinyForCausalLM",), adapter=Ref("math:pi"), blocks=blocks
    )

    @hookimpl
    def parallax_register_models() -> list[ModelSpec]:
        return [model]

    @hookimpl
    def parallax_register_backends() -> list[BackendSpec]:
        return [
            BackendSpec(name="b", summary="s", probe=Ref(f"{__name__}:probe"), factory=Ref(f"{__name__}:Recording"))
        ]

    plugin = SimpleNamespace(
        parallax_register_models=parallax_register_models, parallax_register_backends=parallax_register_backends
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
