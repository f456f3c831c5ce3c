"""Makes small LoRA adapters in PEFT's format, and damages them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

KINDS = {"float32": "F32", "float16": "F16", "uint16": "BF16"}
"""The names of dtypes in safetensors files; numpy has no bfloat16."""
Arrays = Mapping[str, npt.NDArray[Any]]


def write_adapter(folder: Path, matrices: Arrays, **settings: Any) -> Path:
    """Write an adapter, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "bias": "none", **settings}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    (folder / "adapter_model.safetensors").write_bytes(encode(matrices))
    return folder


def encode(arrays: Arrays) -> bytes:
    """Return a safetensors file."""
    header, data = {}, b""
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        place = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": KINDS[array.dtype.name], "shape": list(array.shape), "data_offsets": place}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def make_matrices(
    sizes: Mapping[str, Sequence[int]], rank: int = 4, seed: int = 0, std: float = 0.1, prefix: str = "model."
) -> dict[str, npt.NDArray[Any]]:
    """Return random matrices for modules, given by name as ``[out, in]``."""
    random, made = np.random.default_rng(seed), {}
    for name, (out, into) in sizes.items():
        full = f"base_model.model.{prefix}{name}"
        made[f"{full}.lora_A.weight"] = random.normal(0, std, (rank, into)).astype(np.float32)
        made[f"{full}.lora_B.weight"] = random.normal(0, std, (out, rank)).astype(np.float32)
    return made


def list_sizes(model: Path, endings: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the modules in the layers of a model whose names end so, with the shapes of their matrices."""
    shapes = {name.removesuffix(".weight"): location for name, location in _list_shapes(model).items()}
    found = {name: shape for name, shape in shapes.items() if ".layers." in name and name.endswith(tuple(endings))}
    assert found, f"none of {endings} in {sorted(shapes)[:20]}"
    return {name[name.index("layers.") :]: shape for name, shape in found.items()}


def merge(model: Path, adapter: Path, target: Path) -> Path:
    """Write a copy of a float32 model to whose matrices those of an adapter are added, and return its folder."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(model, target)
    matrices = load_file(adapter / "adapter_model.safetensors")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    for path in target.glob("*.safetensors"):
        tensors = load_file(path)
        for name in tensors:
            module = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{module}.lora_A.weight" in matrices:
                a, b = (matrices[f"{module}.lora_{part}.weight"].astype(np.float64) for part in "AB")
                scale = settings["lora_alpha"] / (len(a) ** 0.5 if settings.get("use_rslora") else len(a))
                tensors[name] = (tensors[name] + scale * (b @ a)).astype(np.float32)
        save_file(tensors, path, {"format": "pt"})
    return target


def _list_shapes(model: Path) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in model.glob("*.safetensors"):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        shapes |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    return shapes
