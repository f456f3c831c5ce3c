"""Writes models in quantised formats, and as the floats that they stand for."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from parallax_core.api import Tensor
from parallax_formats import group_tensors
from parallax_sampling_torch.tensors import name_dtype

CODED = re.compile(r".*_proj\.weight")
"""Matches the names of the tensors that are quantised."""
Parts = Mapping[str, torch.Tensor]


def to_torch(array: mx.array) -> torch.Tensor:
    return torch.from_numpy(np.array(array.view(mx.uint32) if array.dtype == mx.uint32 else array))


def write_mlx(weight: torch.Tensor) -> Parts:
    found = mx.quantize(mx.array(weight.float().numpy()), 32, 4)
    return dict(zip(("weight", "scales", "biases"), map(to_torch, found), strict=True))


def write_fp8(weight: torch.Tensor) -> Parts:
    scale = torch.full((-(-weight.shape[0] // 32), -(-weight.shape[1] // 32)), 0.01)
    return {"weight": (weight.float() / 0.01).to(torch.float8_e4m3fn), "weight_scale_inv": scale}


def draw_words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, generator=torch.Generator().manual_seed(7)).int()


def write_awq(weight: torch.Tensor) -> Parts:
    rows, inputs = weight.shape
    scales = torch.rand(inputs // 32, rows, generator=torch.Generator().manual_seed(8)) * 0.02
    return {
        "qweight": draw_words(inputs, rows // 8),
        "qzeros": draw_words(inputs // 32, rows // 8),
        "scales": scales.half(),
    }


def write_gptq(weight: torch.Tensor) -> Parts:
    rows, inputs = weight.shape
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(9)).int() // 32
    scales = torch.rand(inputs // 32, rows, generator=torch.Generator().manual_seed(8)) * 0.02
    words = {"qweight": draw_words(inputs // 8, rows), "qzeros": draw_words(inputs // 32, rows // 8)}
    return {**words, "scales": scales.half(), "g_idx": order}


def write_packed(weight: torch.Tensor) -> Parts:
    rows, inputs = weight.shape
    scales = torch.rand(rows, inputs // 32, generator=torch.Generator().manual_seed(8)) * 0.02
    shape = torch.tensor([rows, inputs])
    return {"weight_packed": draw_words(rows, inputs // 8), "weight_scale": scales.bfloat16(), "weight_shape": shape}


def write_nf4(weight: torch.Tensor) -> Parts:
    blocks, table = weight.numel() // 64, torch.linspace(-1, 1, 16)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
    return {
        "weight": draw_words(weight.numel() // 8, 1).view(torch.uint8).reshape(-1, 1),
        "weight.absmax": torch.rand(blocks, generator=torch.Generator().manual_seed(8)) * 0.1,
        "weight.quant_map": table,
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }


Writer = Callable[[torch.Tensor], Parts]
FORMATS: dict[str, tuple[Writer, dict[str, Any]]] = {
    "mlx": (write_mlx, {"quantization": {"group_size": 32, "bits": 4}}),
    "fp8": (write_fp8, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}}),
    "awq": (write_awq, {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}}),
    "gptq": (write_gptq, {"quantization_config": {"quant_method": "gptq", "bits": 4, "desc_act": True}}),
    "compressed-tensors": (
        write_packed,
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            }
        },
    ),
    "bitsandbytes": (write_nf4, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}),
}


def as_tensor(found: torch.Tensor) -> Tensor:
    """Return a tensor as it is in a file."""
    return Tensor(name_dtype(found.dtype), tuple(found.shape), bytes(found.contiguous().view(torch.uint8).numpy()))


def read_folder(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of all files of a model."""
    return {name: each for path in folder.glob("*.safetensors") for name, each in load_file(path).items()}


def write_pair(plain: Path, root: Path, method: str) -> tuple[Path, Path]:
    """Write a model in a format, and as the floats that it stands for; returns both folders."""
    writer, settings = FORMATS[method]
    tensors = read_folder(plain)
    coded: dict[str, torch.Tensor] = {}
    for name, weight in tensors.items():
        stem = name.removesuffix(".weight")
        is_coded = CODED.fullmatch(name) and weight.shape[0] % 8 == 0 and weight.shape[1] % 32 == 0
        coded |= {f"{stem}.{word}": part for word, part in writer(weight).items()} if is_coded else {name: weight}
    return write_folders(plain, root, coded, settings)


def write_folders(
    plain: Path, root: Path, coded: Mapping[str, torch.Tensor], settings: Mapping[str, Any]
) -> tuple[Path, Path]:
    """Write tensors of a model in a format, and as the floats that they stand for; returns both folders."""
    found = group_tensors(settings, {name: as_tensor(part) for name, part in coded.items()})
    taken = {name for matrix in found.values() for name in matrix.names}
    floats = {
        name: torch.from_numpy(matrix.read(0, matrix.num_rows)).reshape(matrix.shape) for name, matrix in found.items()
    }
    rest = {name: part for name, part in coded.items() if name not in taken}
    folders = root / "coded", root / "floats"
    for folder, written, more in zip(folders, (coded, {**rest, **floats}), (settings, {}), strict=True):
        folder.mkdir(parents=True)
        for path in plain.iterdir():
            if not path.name.startswith("model"):
                shutil.copy(path, folder)
        save_file(dict(written), folder / "model.safetensors")
        config = json.loads((plain / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **more}))
    return folders


EXPERT = re.compile(r"(.*\.)experts\.(\d+)\.(.*)")


def stack_experts(coded: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors with those of all experts of a layer as one, as mlx-lm writes them."""
    stacks: dict[str, dict[int, torch.Tensor]] = {}
    plain = {}
    for name, tensor in coded.items():
        if found := EXPERT.fullmatch(name):
            stacks.setdefault(f"{found[1]}switch_mlp.{found[3]}", {})[int(found[2])] = tensor
        else:
            plain[name] = tensor
    return plain | {name: torch.stack([parts[number] for number in sorted(parts)]) for name, parts in stacks.items()}
