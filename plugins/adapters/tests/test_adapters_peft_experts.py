"""Adapters of experts, as PEFT writes them: which stack a wrapper is of, and which part of it an expert has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallax_adapters.joined import fit_modules
from parallax_adapters.peft_experts import check_parameters, name_stacks, spell_module, split_stack
from parallax_adapters.peft_files import LowRank, read_adapter, to_floats
from parallax_core.api import Tensor, Unsupported
from tests.support.tiny_adapters import write_adapter

MODULE = "model.layers.3.mlp.experts"
SIZES = {
    f"layers.3.experts.{number}.{name}": sides
    for number in range(4)
    for name, sides in {"gate_proj": (6, 5), "up_proj": (6, 5), "down_proj": (5, 6)}.items()
}


def draw(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def write(folder: Path, stacks: dict[str, tuple[int, int]], rank: int = 2, **settings: Any) -> Path:
    matrices = {}
    for name, (inputs, outputs) in stacks.items():
        matrices[f"base_model.model.{name}.lora_A.weight"] = draw(4 * rank, inputs)
        matrices[f"base_model.model.{name}.lora_B.weight"] = draw(outputs, rank * 4)
    return write_adapter(folder, matrices, r=rank, lora_alpha=6, **settings)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_stacks_are_told_by_their_sizes_and_given_to_experts(tmp_path: Path, is_swapped: bool) -> None:
    up, down = (MODULE, f"{MODULE}.base_layer") if is_swapped else (f"{MODULE}.base_layer", MODULE)
    named = ["down_proj", "layers.3.mlp.experts.gate_up_proj"]  # as PEFT may have it, and as users do
    folder = write(tmp_path / "a", {up: (6, 10), down: (5, 6)}, target_parameters=named)
    adapter = read_adapter(folder, max_rank=2)
    assert {name: each.count for name, each in adapter.modules.items()} == {
        "layers.3.mlp.experts.gate_up_proj": 4,
        "layers.3.mlp.experts.down_proj": 4,
    }
    assert adapter.rank == 2
    fitted = fit_modules(adapter.modules, SIZES)
    assert fitted.keys() == SIZES.keys()
    a, b = draw(8, 6), draw(10, 8)
    for number in range(4):
        gate, rest = fitted[f"layers.3.experts.{number}.gate_proj"], fitted[f"layers.3.experts.{number}.up_proj"]
        delta = b.reshape(10, 2, 4)[:, :, number] @ a.reshape(4, 2, 6)[number]
        np.testing.assert_allclose(to_floats(gate.b) @ to_floats(gate.a), delta[:5], rtol=1e-5)
        np.testing.assert_allclose(to_floats(rest.b) @ to_floats(rest.a), delta[5:], rtol=1e-5)
        assert gate.scale == 3


def test_stack_with_the_outputs_of_gate_and_up_by_turns_is_parted(tmp_path: Path) -> None:
    modules = read_adapter(write(tmp_path / "a", {MODULE: (6, 10)}, target_parameters=["experts.gate_up_proj"])).modules
    names = {"gate_proj": "gate_even", "up_proj": "up_odd", "down_proj": "down_proj"}
    sizes = {f"{stem}.{names[last]}": each for name, each in SIZES.items() for stem, _, last in [name.rpartition(".")]}
    fitted = fit_modules(modules, sizes)
    b = draw(10, 8).reshape(10, 2, 4)[:, :, 3]
    assert np.array_equal(to_floats(fitted["layers.3.experts.3.gate_even"].b), b[0::2])
    assert np.array_equal(to_floats(fitted["layers.3.experts.3.up_odd"].b), b[1::2])
    assert len(fitted) == 8


def test_patterns_are_of_the_parameter(tmp_path: Path) -> None:
    patterns = {"rank_pattern": {r".*\.experts\.down_proj": 2}, "alpha_pattern": {"mlp.experts.down_proj": 1}}
    folder = write(tmp_path / "a", {MODULE: (5, 6)}, 2, target_parameters=["experts.down_proj"], **patterns)
    [(name, found)] = read_adapter(folder).modules.items()
    assert (name, found.rank, found.scale) == ("layers.3.mlp.experts.down_proj", 2, 0.5)


@pytest.mark.parametrize(
    ("stacks", "named", "reason"),
    [
        ({MODULE: (6, 10)}, ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], "other matrices than those of"),
        ({MODULE: (6, 10), f"{MODULE}.base_layer": (5, 6)}, ["mlp.experts.down_proj"], "other matrices than those of"),
        ({MODULE: (6, 10), f"{MODULE}.base_layer": (6, 10)}, ["experts.gate_up_proj", "experts.down_proj"], "fit no"),
        ({MODULE: (6, 10)}, ["other.experts.gate_up_proj"], "other matrices than those of"),
        ({MODULE: (6, 10)}, [], "and the rank 2"),
        ({MODULE: (6, 10)}, ["mlp.experts.weird"], "'mlp.experts.weird', which is no stack of experts"),
        ({MODULE: (6, 10)}, ["x.down_proj"], "'x.down_proj', which is no stack of experts"),
        ({MODULE: (6, 10)}, "experts.down_proj", "must be a list"),
        ({MODULE: (6, 10)}, [7], "must be a list"),
        ({MODULE: (6, 10)}, ["experts.down_proj"] * 5000, "at most 4096"),
    ],
)
def test_stacks_that_cannot_be_told_are_refused(
    tmp_path: Path, stacks: dict[str, tuple[int, int]], named: Any, reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        read_adapter(write(tmp_path / "a", stacks, target_parameters=named))


def test_rank_of_a_stack_is_limited_as_others(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {MODULE: (6, 10)}, 16, target_parameters=["experts.gate_up_proj"])
    assert read_adapter(folder, max_rank=16).rank == 16
    with pytest.raises(Unsupported, match="rank 16; at most 15"):
        read_adapter(folder, max_rank=15)


def test_model_with_other_experts_is_refused(tmp_path: Path) -> None:
    modules = read_adapter(write(tmp_path / "a", {MODULE: (6, 10)}, target_parameters=["experts.gate_up_proj"])).modules
    fewer = {name: sides for name, sides in SIZES.items() if ".3." not in name.removeprefix("layers.3")}
    with pytest.raises(Unsupported, match="is of 4 experts, and this model has 3"):
        fit_modules(modules, fewer)
    assert fit_modules(modules, {}) == dict(modules), "what the model does not have stays for the error that names it"


def test_experts_have_one_name_however_files_spell_it() -> None:
    wanted = "layers.3.experts.5.up_proj"
    assert {
        spell_module(f"layers.3.{each}") for each in ("mlp.experts.5.up_proj", "block_sparse_moe.experts.5.w3")
    } == {wanted}
    assert spell_module(wanted) == wanted
    for other in ("layers.3.mlp.shared_experts.up_proj", "layers.3.mlp.up_proj", "layers.3.mlp.experts.gate_up_proj"):
        assert spell_module(other) == other
    assert name_stacks({"x.experts": (1, 2)}, frozenset()) == {}
    assert spell_module("layers.3.block_sparse_moe.gate") == "layers.3.mlp.gate"
    check_parameters(["mlp.gate.weight", "gate_up_proj", "model.layers.0.mlp.experts.gate_up_proj"])


@pytest.mark.parametrize(("dtype", "kind"), [("float32", np.float32), ("bfloat16", np.uint16), ("float16", np.float16)])
def test_experts_of_a_stack_keep_their_numbers(dtype: Any, kind: Any) -> None:
    a, b = np.arange(24).astype(kind), np.arange(30).astype(kind)
    stack = LowRank(Tensor(dtype, (6, 4), a.data.cast("B")), Tensor(dtype, (5, 6), b.data.cast("B")), 1.0, 3)
    for number, (one, other) in enumerate(split_stack(stack.a, stack.b, 3)):
        assert (one.shape, other.shape) == ((2, 4), (5, 2))
        assert np.frombuffer(one.data, kind).tolist() == a.reshape(3, 2, 4)[number].ravel().tolist()
        assert np.frombuffer(other.data, kind).tolist() == b.reshape(5, 2, 3)[:, :, number].ravel().tolist()
