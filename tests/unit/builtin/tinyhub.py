"""A model as hubs have it, and a process that fetches it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from tests.fakehub import FakeHub

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


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".complete.json"}


def child(hub: FakeHub, folder: Path, first: str = "", **env: str) -> subprocess.Popen[str]:
    program = (
        f"import pathlib, sys\n{first}\n"
        "from parallax_core.builtin.hub import HubSource\n"
        "from parallax_core.contracts.source import SourceContext\n"
        "def report(task, done, total, unit='bytes'):\n"
        "    print(done, total, flush=True)\n"
        "source = HubSource(SourceContext(folder=pathlib.Path(sys.argv[1])), pauses_s=(0, 0))\n"
        "print(source.fetch(sys.argv[2], report).path)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, str(folder), NAME],
        env={**os.environ, "HF_ENDPOINT": hub.endpoint, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
