from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from parallax_core.api import LayerShape, ModelShape, ModelSpec, Ref, hookimpl
from parallax_core.base.errors import BrokenPlugin, ParallaxError, PluginConflict, Unsupported
from parallax_core.models.adapters import count_active, count_weights, find_family
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost


def make_plugin(name: str, adapter: str, architecture: str = "TinyForCausalLM") -> tuple[PluginRecord, object]:
    spec = ModelSpec(name=name, summary="s", architectures=(architecture,), adapter=Ref(adapter))

    @hookimpl
    def parallax_register_models() -> list[ModelSpec]:
        return [spec]

    record = PluginRecord(name=name, module=name, distribution=f"dist-{name}", version="1", state="loaded")
    return record, SimpleNamespace(parallax_register_models=parallax_register_models)


def make_shape(**changes: Any) -> ModelShape:
    window = LayerShape(kind="window", weights=30, active_weights=10, kv_width=4, window=8)
    layers = (window, LayerShape(kind="state", weights=20, active_weights=20, state_width=50))
    given: dict[str, Any] = {
        "hidden_size": 2,
        "vocab_size": 5,
        "context_length": 9,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 2,
        "layers": layers,
        "before_weights": 10,
        "after_weights": 2,
        "is_tied": True,
    }
    return ModelShape(**(given | changes))


def test_family_is_found_by_architecture() -> None:
    host = PluginHost([make_plugin("tiny", "math:pi")])
    family = find_family(host, {"architectures": ["Other", "TinyForCausalLM"]})
    assert family is not None
    assert family.name == "tiny"
    assert find_family(host, {"architectures": ["Other"]}) is None
    assert find_family(host, {}) is None
    assert find_family(host, {"architectures": "TinyForCausalLM"}) is not None


@pytest.mark.parametrize("architectures", [5, True, [["TinyForCausalLM"]], {"a": 1}])
def test_architectures_that_are_no_names_are_an_error_with_a_hint(architectures: object) -> None:
    with pytest.raises(ParallaxError, match=r"'architectures' in config\.json is") as caught:
        find_family(PluginHost([make_plugin("tiny", "math:pi")]), {"architectures": architectures})
    assert caught.value.hint


def test_two_claims_on_an_architecture_are_an_error_naming_both() -> None:
    host = PluginHost([make_plugin("one", "math:pi"), make_plugin("two", "math:pi")])
    with pytest.raises(PluginConflict, match="dist-one 1 and dist-two 1"):
        find_family(host, {"architectures": ["TinyForCausalLM"]})


class Any24:
    """Describes any model with 24 heads."""

    def read_shape(self, config: dict[str, Any]) -> ModelShape:
        if config.get("heads") != 24:
            raise Unsupported("another number of heads", "")
        return make_shape()


ANY_24 = Any24()


def test_adapter_of_any_architecture_is_asked_last_and_counts_only_if_it_reads_the_model() -> None:
    any_plugin, own = make_plugin("any", f"{__name__}:ANY_24", "*"), make_plugin("own", f"{__name__}:ANY_24")
    host = PluginHost([any_plugin, own])
    found = [
        find_family(host, {"architectures": [name], "heads": 24}) for name in ("TinyForCausalLM", "NewForCausalLM")
    ]
    assert [family.name if family else "" for family in found] == ["own", "any"]
    assert find_family(host, {"architectures": ["NewForCausalLM"], "heads": 23}) is None
    assert find_family(host, {"architectures": ["TinyForCausalLM"], "heads": 23}), "it says itself why not"


def test_adapter_that_cannot_be_loaded_names_its_plugin() -> None:
    host = PluginHost([make_plugin("tiny", "math:missing")])
    with pytest.raises(BrokenPlugin, match="dist-tiny"):
        find_family(host, {"architectures": ["TinyForCausalLM"]})


def test_weights_are_summed_and_a_tied_head_is_met_once() -> None:
    assert count_weights(make_shape()) == 62
    assert count_active(make_shape()) == 10 + 2 + 30
    assert count_active(make_shape(is_tied=False, after_weights=12)) == 12 + 30
