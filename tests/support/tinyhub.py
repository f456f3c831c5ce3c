"""A small model for the fake hub, and a process that fetches it."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from parallax_core.api import read_tensors, silent
from tests.support.fakehub import FakeHub

NAME = "tiny/model"
WEIGHTS = random.Random(1).randbytes(300_000)
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"model": {}}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
}
UNWANTED = {
    ".gitattributes": b"x",
    "README.md": b"x",
    "modeling_tiny.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickled",
    "model.pt": b"pickled",
    "model-q4.gguf": b"GGUF",
    "consolidated.safetensors": b"again",
    "original/consolidated.00.pth": b"again",
    "original/model.safetensors": b"again",
    "onnx/config.json": b"{}",
}


LAYERS, WIDTH = 30, 100_000
EMBEDDING = 200_000


def list_sizes() -> dict[str, int]:
    """Return the size in bytes of each tensor of a model with layers, sorted by name as transformers saves them."""
    layers = {f"model.layers.{index}.{part}": WIDTH for index in range(LAYERS) for part in ("attn", "mlp")}
    return dict(sorted({"model.embed_tokens.weight": EMBEDDING, "model.norm.weight": 500, **layers}.items()))


def make_weights(sizes: Mapping[str, int]) -> bytes:
    """Return a safetensors file with tensors of random bytes, determined by their names."""
    header, end = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + b"".join(map(make_tensor, sizes, sizes.values()))


def make_tensor(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)


LAYERED = MODEL | {"model.safetensors": make_weights(list_sizes())}
"""A model of `LAYERS` layers in one file."""


def split_layered(num_files: int) -> dict[str, bytes]:
    """Return the model of `LAYERED` in several files with an index."""
    names = list(list_sizes())
    size = -(-len(names) // num_files)
    groups = [names[start : start + size] for start in range(0, len(names), size)]
    files = {f"model-{number}-of-{num_files}.safetensors": group for number, group in enumerate(groups, 1)}
    index = {"weight_map": {name: file for file, group in files.items() for name in group}}
    weights = {file: make_weights({name: list_sizes()[name] for name in group}) for file, group in files.items()}
    small = {name: content for name, content in MODEL.items() if name != "model.safetensors"}
    return small | weights | {"model.safetensors.index.json": json.dumps(index).encode()}


class Stage:
    """The tensors of a stage; the first stage has the embedding, the last one the norm."""

    def __init__(self, start: int, stop: int) -> None:
        layers = {name: found for name in list_sizes() if (found := re.search(r"layers\.(\d+)\.", name))}
        self.names = {name for name, found in layers.items() if start <= int(found[1]) < stop}
        if start == 0:
            self.names.add("model.embed_tokens.weight")
        if stop == LAYERS:
            self.names.add("model.norm.weight")
        self.num_bytes = sum(list_sizes()[name] for name in self.names)

    def wants(self, name: str) -> bool:
        return name in self.names


def read_stage(folder: Path, stage: Stage) -> dict[str, bytes]:
    """Return the contents of a stage's tensors in a folder."""
    return {name: bytes(tensor.data) for name, tensor in read_tensors(folder, stage.wants, silent)}


def make_stage(stage: Stage) -> dict[str, bytes]:
    """Return the expected contents of a stage's tensors."""
    return {name: make_tensor(name, list_sizes()[name]) for name in stage.names}


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if not file.name.startswith(".")}


def child(
    hub: FakeHub, folder: Path, first: str = "", call: str = "fetch(sys.argv[2], report)", **env: str
) -> subprocess.Popen[str]:
    program = (
        f"import pathlib, sys\n{first}\n"
        "from parallax_source_hub.source import HubSource\n"
        "from parallax_core.api import SourceContext\n"
        "def report(task, done, total, unit='bytes'):\n"
        "    print(done, total, flush=True)\n"
        "source = HubSource(SourceContext(folder=pathlib.Path(sys.argv[1])), pauses_s=(0, 0))\n"
        f"print(source.{call}.path)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, str(folder), NAME],
        env={**os.environ, "HF_ENDPOINT": hub.endpoint, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
