"""Stages of every family do what its adapter says; the kit names the fault of a family that says something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import ModelAdapter, ModelShape, Part, Plane, Stage, StagePlan, read_object
from parallax_core.testing.blocks import bring_blocks
from parallax_models.plugin import parallax_register_models
from parallax_models.testing.stages import CutModel, check_closure, check_planes, check_pools
from tests.support.checkpoints import save_family
from tests.support.pretence import Pretence, pretend_device

SPECS = {name: spec for spec in parallax_register_models() for name in spec.architectures}
KINDS = (
    *("llama", "qwen3_next", "deepseek_v4", "gemma4_text", "gemma4_moe", "glm_moe_dsa", "glm5_next", "hy_v4"),
    *("minimax_m3_vl", "falcon_h1", "nemotron_h", "qwen4_exp_text", "kimi_linear"),
)
"""Model types with every kind of plane, memory and closure."""
torch_backend = pytest.importorskip("parallax_backend_torch.backend")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def open_brought(plan: StagePlan) -> Stage:
    """Open a stage with the shape of its plan, which may be a wrong one, and the blocks of the family."""
    stage: Stage = torch_backend.TorchBackend().open_stage(replace(plan, blocks=plan.blocks or find_blocks(plan)))
    return stage


def find_blocks(plan: StagePlan) -> Any:
    return bring_blocks(replace(plan, blocks=None), "torch").blocks


def make_model(kind: str, folder: Path) -> CutModel:
    save_family(kind, folder / "model")
    [name] = read_object(folder / "model/config.json")["architectures"]
    return CutModel(folder=folder / "model", adapter=SPECS[name].adapter.load(), open_stage=open_brought)


@dataclass(frozen=True)
class Liar:
    """An adapter that describes a model otherwise than its family does."""

    true: ModelAdapter
    change: Callable[[ModelShape], ModelShape] | None = None
    misplaced: Callable[[str, Part], Part] | None = None

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        shape = self.true.read_shape(config)
        return self.change(shape) if self.change else shape

    def find_part(self, tensor: str) -> Part:
        part = self.true.find_part(tensor)
        return self.misplaced(tensor, part) if self.misplaced else part


def change_planes(named: str, /, **changes: Any) -> Callable[[ModelShape], ModelShape]:
    """Return what declares a plane otherwise, wherever it is given and taken."""
    new = str(changes.get("name", named))

    def change(shape: ModelShape) -> ModelShape:
        plain = Plane(named, (shape.hidden_size,))
        layers = tuple(
            replace(
                layer,
                gives=tuple(
                    replace(each, **changes) if each.name == named else each for each in layer.gives or (plain,)
                ),
                takes=tuple(new if each == named else each for each in layer.takes),
            )
            for layer in shape.layers
        )
        return replace(shape, layers=layers)

    return change


def forget_sources(shape: ModelShape) -> ModelShape:
    return replace(shape, layers=tuple(replace(layer, source=None) for layer in shape.layers))


def forget_takes(shape: ModelShape) -> ModelShape:
    return replace(shape, layers=tuple(replace(layer, takes=("hidden",)) for layer in shape.layers))


def misplace(words: str) -> Callable[[str, Part], Part]:
    """Return what puts tensors whose names have these words in the last part of a model."""
    return lambda tensor, part: "after" if words in tensor else part


@dataclass
class FirstLayer:
    """Blocks that keep for every layer of a stage what its first layer keeps."""

    true: Any
    first: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.true, name)

    def keep_layer(self, index: int) -> Any:
        del index
        return self.true.keep_layer(self.first)


def open_with_first(plan: StagePlan) -> Stage:
    blocks, first = find_blocks(plan), plan.layers.start if plan.layers else 0
    return open_brought(replace(plan, blocks=lambda config: FirstLayer(blocks(config), first)))


@pytest.mark.parametrize("kind", KINDS)
def test_stages_do_what_the_adapter_says(kind: str, tmp_path: Path) -> None:
    model = make_model(kind, tmp_path)
    check_planes(model)
    check_pools(model)
    check_closure(model, tmp_path)


def list_planes() -> Iterator[Any]:
    """Yield a family, what it declares wrongly, and what the kit says of it."""
    wrong_name = change_planes("chosen", name="indices")
    yield pytest.param("glm_moe_dsa", wrong_name, r"begin with layers .*cannot run: .*'?indices'?", id="name")
    few = change_planes("hidden", shape=(2, 32))
    yield pytest.param(
        "hy_v4", few, r"the plane 'hidden' after layer 0 has the shape .* declares \(12, 2, 32\)", id="2"
    )
    flat = change_planes("hidden", shape=(128,))
    yield pytest.param("deepseek_v4", flat, r"'hidden' after layer 0 has the shape .* declares \(12, 128\)", id="flat")
    narrow = change_planes("chosen", dtype="uint8")
    yield pytest.param("glm_moe_dsa", narrow, r"begin with layers .*'chosen' of .* in uint8|cannot run", id="narrow")
    rounded = change_planes("chosen", dtype="")
    yield pytest.param("glm_moe_dsa", rounded, r"begin with layers .*(in the dtype of act|cannot run)", id="rounded")
    yield pytest.param("glm_moe_dsa", forget_takes, r"cannot run: KeyError: 'chosen'", id="forgotten")


@pytest.mark.parametrize(("kind", "change", "said"), [*list_planes()])
def test_plane_that_is_declared_wrongly_is_named(
    kind: str, change: Callable[[ModelShape], ModelShape], said: str, tmp_path: Path
) -> None:
    model = make_model(kind, tmp_path)
    with pytest.raises(AssertionError, match=said):
        check_planes(replace(model, adapter=Liar(model.adapter, change)))


def test_plane_that_is_declared_wider_than_it_is_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that computes in half the bits, as the CPU does not."""
    pretend_device(monkeypatch, 2**30)
    model = make_model("llama", tmp_path)
    with Pretence():
        check_planes(model)
        with pytest.raises(AssertionError, match="'hidden' after layer 0 is declared float32, and holds rounded"):
            check_planes(replace(model, adapter=Liar(model.adapter, change_planes("hidden", dtype="float32"))))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("qwen3_next", r"a stage that begins with layer 0 has the pools \['state'\], and layer 1 keeps full"),
        ("gemma3_text", r"begins with layer 0 has the pools \['window \d+'\], and layer 1 keeps full"),
        ("nemotron_h", r"begins with layer 0 has the pools .*, and layer \d+ keeps"),
        ("deepseek_v4", r"begins with layer 0 has the pools \['latent', 'window 32'\], and layer 1 keeps window 8"),
    ],
)
def test_kind_of_memory_of_the_first_layer_is_not_that_of_all(kind: str, said: str, tmp_path: Path) -> None:
    model = make_model(kind, tmp_path)
    with pytest.raises(AssertionError, match=said):
        check_pools(replace(model, open_stage=open_with_first))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("qwen3_next", "layers.1.mlp.shared_expert."),
        ("deepseek_v4", "layers.2.ffn.shared_experts."),
        ("gemma4_text", "layers.2.self_attn.k_proj"),
        ("kimi_linear", "layers.1.self_attn."),
        ("hy_v4", "layers.1.hc_"),
        ("qwen4_exp_text", "layers.1.ple."),
        ("llama", "layers.2.post_attention_layernorm"),
    ],
)
def test_tensor_that_a_stage_would_leave_behind_is_named(kind: str, words: str, tmp_path: Path) -> None:
    model = make_model(kind, tmp_path)
    with pytest.raises(AssertionError, match=rf"cannot run on the tensors of its layers alone: .*{words}"):
        check_closure(replace(model, adapter=Liar(model.adapter, misplaced=misplace(words))), tmp_path)


def test_keys_of_an_earlier_layer_that_a_stage_would_leave_behind_are_missed(tmp_path: Path) -> None:
    model = make_model("gemma4_text", tmp_path)
    with pytest.raises(AssertionError, match=r"tensors of (its|their) layers alone"):
        check_closure(replace(model, adapter=Liar(model.adapter, forget_sources)), tmp_path)
