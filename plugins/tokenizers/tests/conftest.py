from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_core.api import cache_folder
from parallax_tokenizers.tiktoken import write_token


@pytest.fixture(scope="session")
def ranks() -> list[bytes]:
    """The tokens of a real vocabulary of 49 152, by rank: bytes, then the results of its merges."""
    home = cache_folder("test-model")
    command = [str(Path(sys.executable).with_name("parallax")), "models", "pull", "smollm2-135m"]
    environment = os.environ | {"PARALLAX_HOME": str(home)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=170)
    merges = json.loads((Path(done.stdout.strip()) / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
    letters = {write_token(bytes([byte])): byte for byte in range(256)}
    texts = ["".join(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges]
    tokens = (bytes(letters[letter] for letter in text) for text in texts)
    return list(dict.fromkeys([*(bytes([byte]) for byte in range(256)), *tokens]))


def write_ranks(file: Path, ranks: list[bytes]) -> Path:
    """Write a file of tiktoken."""
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(ranks))
    file.write_bytes(b"".join(lines))
    return file
