from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import ConfigReader, LayerShape, ModelShape, ModelSpec, Part, Plane, Ref, Unsupported
from parallax_core.testing.model import ModelConformance, read_checkpoint, write_checkpoint
from tests.conformance.harness import list_tests, run_test

CONFIG = {
    "architectures": ["TinyForCausalLM"],
    "vocab_size": 11,
    "hidden_size": 6,
    "width": 10,
    "layers": ["full", "window", "state"],
    "num_layers": 3,
    "tied": False,
}
LAYER = re.compile(r"layer\.(\d+)\.(mix|norm)")


class TinyAdapter:
    """A family made up for this test: one square matrix and a norm a layer."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        try:
            hidden, vocab, kinds = config["hidden_size"], config["vocab_size"], config["layers"]
        except KeyError as error:
            raise Unsupported(f"config.json has no {error}") from error
        if config.get("rotation", "none") != "none":
            raise Unsupported(f"rotation is {config['rotation']!r}, which this family lacks")
        tied = config["tied"]
        ConfigReader(config).count("num_layers", default=len(kinds))
        return ModelShape(
            hidden_size=hidden,
            vocab_size=vocab,
            context_length=32,
            num_heads=2,
            num_kv_heads=1,
            head_dim=3,
            layers=tuple(self.read_layer(kind, hidden) for kind in kinds),
            before_weights=vocab * hidden,
            after_weights=hidden + (0 if tied else vocab * hidden),
            is_tied=tied,
        )

    def read_layer(self, kind: Any, hidden: int) -> LayerShape:
        weights = hidden * hidden + hidden
        return LayerShape(
            kind=kind,
            weights=weights,
            active_weights=weights,
            kv_width=0 if kind == "state" else 6,
            state_width=9 if kind == "state" else 0,
            window=4 if kind == "window" else 0,
        )

    def find_part(self, tensor: str) -> Part:
        if match := LAYER.fullmatch(tensor):
            return int(match[1])
        parts: dict[str, Part] = {"embedding": "before", "last": "after", "head": "after"}
        if tensor not in parts:
            raise Unsupported(f"this family has no tensor {tensor!r}")
        return parts[tensor]


ADAPTER = TinyAdapter()


def write_tiny(path: Path, *, tied: bool) -> Path:
    layers: dict[str, tuple[int, ...]] = {
        f"layer.{i}.{name}": shape for i in range(3) for name, shape in (("mix", (6, 6)), ("norm", (6,)))
    }
    ends: dict[str, tuple[int, ...]] = {"embedding": (11, 6), "last": (6,)} | ({} if tied else {"head": (11, 6)})
    return write_checkpoint(path, CONFIG | {"tied": tied}, layers | ends)


class TinyKit(ModelConformance):
    spec = ModelSpec(
        name="tiny",
        summary="made up",
        architectures=("TinyForCausalLM",),
        adapter=Ref("tests.conformance.test_model:ADAPTER"),
    )
    refused = (("rotation", "twice"),)

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        return [write_tiny(folder / "tied", tied=True), write_tiny(folder / "untied", tied=False)]


class TestTiny(TinyKit):
    """The healthy one passes."""


class Keyless(TinyAdapter):
    """Has layers without keys and values, of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def read_layer(self, kind: Any, hidden: int) -> LayerShape:
        layer = super().read_layer(kind, hidden)
        return dataclasses.replace(layer, kv_width=0) if kind == self.kind else layer


class TestKeyless(TinyKit):
    """Layers that keep nothing of a sequence pass."""

    adapter = Keyless("full")


class Stateful(TinyAdapter):
    """Has a state beside what layers of one kind keep of each token."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def read_layer(self, kind: Any, hidden: int) -> LayerShape:
        layer = super().read_layer(kind, hidden)
        return dataclasses.replace(layer, state_width=9) if kind == self.kind else layer


class TestStateful(TinyKit):
    """Layers that keep keys and values, and a state beside them, pass."""

    adapter = Stateful("full")


def test_written_checkpoint_can_be_read(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny(tmp_path / "model", tied=True))
    assert checkpoint.config == CONFIG | {"tied": True}
    assert checkpoint.tensors["layer.2.mix"] == (6, 6)
    assert "head" not in checkpoint.tensors


class Carrying(TinyAdapter):
    """Has layers that take and give other planes than hidden states, or read keys of others."""

    def __init__(self, *changes: Mapping[str, Any]) -> None:
        self.changes = changes

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        shape = super().read_shape(config)
        layers = (dataclasses.replace(layer, **each) for layer, each in zip(shape.layers, self.changes, strict=True))
        return dataclasses.replace(shape, layers=tuple(layers))


BOTH = {"gives": (Plane("hidden", (2, 6)), Plane("mix", (3,), "float32"))}
TAKING = {"takes": ("hidden", "mix")}
READING = {"kind": "full", "kv_width": 0, "state_width": 0, "source": 0}


class TestCarrying(TinyKit):
    """Planes from the first layer to the last, and keys that the last reads."""

    adapter = Carrying(BOTH, {}, TAKING | READING)


class Credulous(TinyAdapter):
    """Believes every number of layers."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        return super().read_shape({name: value for name, value in config.items() if name != "num_layers"})


class Heavy(TinyAdapter):
    """Counts no norms."""

    def read_layer(self, kind: Any, hidden: int) -> LayerShape:
        shape = super().read_layer(kind, hidden)
        return dataclasses.replace(shape, weights=shape.weights - hidden, active_weights=shape.weights - hidden)


class Changed(TinyAdapter):
    """Says something else of the whole model."""

    changes: Mapping[str, Any]

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        return dataclasses.replace(super().read_shape(config), **self.changes)


class Busy(TinyAdapter):
    """Says that a token meets more than there is."""

    def read_layer(self, kind: Any, hidden: int) -> LayerShape:
        return dataclasses.replace(super().read_layer(kind, hidden), active_weights=10**6)


class Windowless(TinyAdapter):
    """Forgets how wide windows are."""

    def read_layer(self, kind: Any, hidden: int) -> LayerShape:
        return dataclasses.replace(super().read_layer(kind, hidden), window=0)


class Farsighted(TinyAdapter):
    """Says of a layer without a window that it keeps something beside one."""

    def read_layer(self, kind: Any, hidden: int) -> LayerShape:
        return dataclasses.replace(super().read_layer(kind, hidden), long_width=2)


class Blind(TinyAdapter):
    """Does not know the norms."""

    def find_part(self, tensor: str) -> Part:
        if tensor.endswith("norm"):
            raise Unsupported(f"what is {tensor}?")
        return super().find_part(tensor)


class Shifted(TinyAdapter):
    """Counts layers from 1."""

    def find_part(self, tensor: str) -> Part:
        part = super().find_part(tensor)
        return part + 1 if isinstance(part, int) else part


class Generous(TinyAdapter):
    """Has a place for everything."""

    def find_part(self, tensor: str) -> Part:
        try:
            return super().find_part(tensor)
        except Unsupported:
            return "after"


class Tolerant(TinyAdapter):
    """Overlooks what it lacks."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        return super().read_shape({**config, "rotation": "none"})


class Vague(TinyAdapter):
    """Does not say what it lacks."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        try:
            return super().read_shape(config)
        except Unsupported as error:
            raise Unsupported("this model cannot be used") from error


class Tidying(TinyAdapter):
    """Leaves its marks in what it reads."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        config.setdefault("tied", False)  # type: ignore[attr-defined]
        return super().read_shape(config)


class Sorting(TinyAdapter):
    """Changes a list in what it reads."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        shape = super().read_shape(config)
        config["layers"].append(config["layers"].pop(0))
        return shape


def say(**changes: Any) -> TinyAdapter:
    adapter = Changed()
    adapter.changes = changes
    return adapter


FAULTS: list[tuple[TinyAdapter, str, str]] = [
    (Heavy(), "test_layers_weigh_what_their_tensors_do", "layer 0 of tied has 42 parameters, not 36"),
    (
        say(before_weights=1),
        "test_ends_weigh_what_their_tensors_do",
        "before the layers of tied are 66 parameters, not 1",
    ),
    (say(after_weights=1), "test_ends_weigh_what_their_tensors_do", "after the layers of tied are 6 parameters, not 1"),
    (say(is_tied=True), "test_embedding_and_head_are_where_they_belong", "is_tied is True"),
    (say(num_kv_heads=0), "test_numbers_make_sense", "cannot have the shape"),
    (Busy(), "test_numbers_make_sense", "active weights of"),
    (Keyless("window"), "test_numbers_make_sense", "a window layer has kv_width 0"),
    (Stateful("window"), "test_numbers_make_sense", "a window layer has LayerShape(kind='window'"),
    (Windowless(), "test_numbers_make_sense", "has window 0"),
    (Farsighted(), "test_numbers_make_sense", "has long_width 2"),
    (Carrying({}, TAKING, {}), "test_borders_follow_from_the_layers", "layer 1 takes 'mix', which no layer before it"),
    (
        Carrying(BOTH, {}, {}),
        "test_borders_follow_from_the_layers",
        "layer 0 gives ['mix'], and nothing after it",
    ),
    (
        Carrying({}, {}, READING | {"source": 2}),
        "test_borders_follow_from_the_layers",
        "layer 2 would read the keys of layer 2",
    ),
    (
        Carrying({"gives": (Plane("mix", (3,)),)}, {}, TAKING),
        "test_borders_follow_from_the_layers",
        "layer 0 takes ('hidden',) and gives ['mix']",
    ),
    (
        Carrying({"gives": (Plane("hidden", (0, 6)),)}, {}, {}),
        "test_borders_follow_from_the_layers",
        "layer 0 gives Plane",
    ),
    (Credulous(), "test_count_of_layers_that_no_model_has_is_refused", "did not raise Unsupported"),
    (Blind(), "test_every_tensor_has_a_part", "is refused"),
    (Shifted(), "test_every_tensor_has_a_part", "belongs to 3, with 3 layers"),
    (Generous(), "test_tensor_of_nowhere_is_refused", "did not raise Unsupported"),
    (Tolerant(), "test_setting_the_family_lacks_is_refused_by_name", "did not raise Unsupported"),
    (Vague(), "test_setting_the_family_lacks_is_refused_by_name", "this model cannot be used"),
    (Tidying(), "test_same_configuration_gives_the_same_shape_and_stays_as_it_is", "needs more than a mapping"),
    (Sorting(), "test_same_configuration_gives_the_same_shape_and_stays_as_it_is", "was read as"),
]


@pytest.mark.parametrize(("adapter", "name", "finding"), FAULTS)
def test_kit_catches_a_fault(adapter: TinyAdapter, name: str, finding: str) -> None:
    assert finding in run_test(type("Kit", (TinyKit,), {"adapter": adapter}), name)


def test_kit_catches_a_family_that_answers_to_another_name() -> None:
    spec = dataclasses.replace(TinyKit.spec, architectures=("OtherForCausalLM",))
    found = run_test(type("Kit", (TinyKit,), {"spec": spec}), "test_family_answers_to_the_architecture")
    assert "but this family has ('OtherForCausalLM',)" in found


def test_every_test_of_the_kit_catches_something() -> None:
    shown = {name for _, name, _ in FAULTS} | {"test_family_answers_to_the_architecture"}
    assert set(list_tests(ModelConformance)) == shown
