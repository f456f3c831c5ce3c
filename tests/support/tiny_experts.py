"""Makes small LoRA adapters of experts as PEFT's ``target_parameters`` does, and merges them into checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from tests.support.tiny_adapters import list_sizes, make_matrices, merge, write_adapter

PARTS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
STORED = re.compile(r"model\.layers\.(?P<layer>\d+)\.\w+\.experts\.(?P<number>\d+)\.(?P<part>\w+)\.weight")
STACKS = ("gate_up_proj", "down_proj")


def make_experts(
    model: Path, folder: Path, *, seed: int = 0, stacks: Sequence[str] = STACKS, others: bool = True
) -> Path:
    """Write an adapter of all experts of a checkpoint whose experts are stored one by one, and return its folder.

    As PEFT has it, the wrapper of the last stack is the outer one; ``others``: it changes attention, too.
    """
    rank, random, matrices = 3, np.random.default_rng(seed), dict[str, npt.NDArray[Any]]()
    for layer, (count, inner, width) in find_experts(model).items():
        sides = {"gate_up_proj": (width, 2 * inner), "down_proj": (inner, width)}
        for depth, stack in enumerate(reversed(stacks)):
            name = f"base_model.model.model.layers.{layer}.mlp.experts{'.base_layer' * depth}"
            inputs, outputs = sides[stack]
            matrices[f"{name}.lora_A.weight"] = _draw(random, count * rank, inputs)
            matrices[f"{name}.lora_B.weight"] = _draw(random, outputs, rank * count)
    if others:
        matrices |= make_matrices(list_sizes(model, ("q_proj", "v_proj")), rank, seed, std=0.3)
    named = [f"mlp.experts.{stack}" for stack in stacks]
    settings = {"r": rank, "lora_alpha": 2 * rank, "target_parameters": named, "target_modules": ["q_proj", "v_proj"]}
    return write_adapter(folder, matrices, **settings)


def find_experts(model: Path) -> dict[str, tuple[int, int, int]]:
    """Return the number of experts of each layer that has some, and their inner and outer widths."""
    found: dict[str, tuple[int, int, int]] = {}
    for path in model.glob("*.safetensors"):
        for name, array in load_file(path).items():
            if (match := STORED.fullmatch(name)) and PARTS[match["part"]] == "gate":
                count = max(int(match["number"]) + 1, found.get(match["layer"], (0, 0, 0))[0])
                found[match["layer"]] = (count, *array.shape)
    return found


def merge_experts(model: Path, adapter: Path, target: Path) -> Path:
    """Write a copy of a float32 model to which an adapter of experts is added, computed as PEFT does."""
    merge(model, adapter, target)
    matrices, settings = load_file(adapter / "adapter_model.safetensors"), _read_settings(adapter)
    stacks = [each.rpartition(".")[2] for each in settings["target_parameters"]]
    scale = settings["lora_alpha"] / settings["r"]
    deltas = {
        (layer, stack): scale * _multiply(matrices, f"layers.{layer}.mlp.experts{'.base_layer' * depth}", counts[0])
        for layer, counts in find_experts(model).items()
        for depth, stack in enumerate(reversed([each for each in STACKS if each in stacks]))
    }
    for path in target.glob("*.safetensors"):
        tensors = load_file(path)
        for name in tensors:
            if match := STORED.fullmatch(name):
                tensors[name] = tensors[name] + _choose(deltas, match, len(tensors[name]))
        made = {name: np.ascontiguousarray(each, np.float32) for name, each in tensors.items()}
        save_file(made, path, {"format": "pt"})
    return target


def split_experts(adapter: Path, model: Path, target: Path) -> Path:
    """Write the same adapter with the matrices of each expert apart, as PEFT has them of experts that are modules."""
    matrices, settings = load_file(adapter / "adapter_model.safetensors"), _read_settings(adapter)
    made = {name: each for name, each in matrices.items() if ".experts" not in name}
    for layer, (count, inner, _) in find_experts(model).items():
        for depth, stack in enumerate(("down_proj", "gate_up_proj")):
            stem = f"base_model.model.model.layers.{layer}.mlp.experts"
            a, b = (matrices[f"{stem}{'.base_layer' * depth}.lora_{part}.weight"] for part in "AB")
            for number, (one, other) in enumerate(zip(_split_a(a, count), _split_b(b, count), strict=True)):
                halves = {"down_proj": other}
                if stack == "gate_up_proj":
                    halves = {"gate_proj": other[:inner], "up_proj": other[inner:]}
                for name, half in halves.items():
                    made[f"{stem}.{number}.{name}.lora_A.weight"] = one
                    made[f"{stem}.{number}.{name}.lora_B.weight"] = np.ascontiguousarray(half)
    shutil.rmtree(target, ignore_errors=True)
    return write_adapter(target, made, r=settings["r"], lora_alpha=settings["lora_alpha"])


def _split_a(a: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    return a.reshape(count, -1, a.shape[1])


def _split_b(b: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    return b.reshape(len(b), -1, count).transpose(2, 0, 1)


def _multiply(matrices: Mapping[str, npt.NDArray[Any]], name: str, count: int) -> npt.NDArray[np.float64]:
    a, b = (matrices[f"base_model.model.model.{name}.lora_{part}.weight"].astype(np.float64) for part in "AB")
    found: npt.NDArray[np.float64] = np.einsum("ore,eri->eoi", b.reshape(len(b), -1, count), _split_a(a, count))
    return found


def _choose(deltas: Mapping[tuple[str, str], npt.NDArray[Any]], match: re.Match[str], rows: int) -> Any:
    part, number = PARTS[match["part"]], int(match["number"])
    stack = deltas.get((match["layer"], "down_proj" if part == "down" else "gate_up_proj"))
    if stack is None:
        return 0
    return stack[number][rows:] if part == "up" else stack[number][:rows]


def _draw(random: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return random.normal(0, 0.3, shape).astype(np.float32)


def _read_settings(adapter: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text())
    return found
