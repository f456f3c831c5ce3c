"""A process that serves layers imports no tokenizers of mlx_lm and no client of a hub; whoever wants them has them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub.errors import HFValidationError
from tokenizers import Tokenizer, models, pre_tokenizers

from parallax_backend_mlx import import_shim, runtime

OPEN = """
import sys
from pathlib import Path
from parallax_backend_mlx.backend import MlxBackend
from parallax_core.api import StagePlan
MlxBackend().open_stage(StagePlan(model=Path({folder!r}))).close()
print(sorted({{"torch", "transformers", "mlx_lm.generate", "huggingface_hub.hf_api"}} & set(sys.modules)))
"""


def test_stage_is_opened_without_tokenizers(llama: Path) -> None:
    command = [sys.executable, "-c", OPEN.format(folder=str(llama))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
    assert done.stderr == ""


def test_package_is_whole_for_whoever_wants_it(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"one": 0, "two": 1}, unk_token="one"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    package = importlib.import_module("mlx_lm")
    assert package.utils.load_model is runtime.load_model
    assert package.utils.load_tokenizer(tmp_path).encode("two one") == [1, 0]
    assert package.generate.__module__ == "mlx_lm.generate"
    with pytest.raises(HFValidationError):
        package.utils.hf_repo_to_path("no folder")


def test_package_that_was_imported_before_is_left_alone() -> None:
    before = importlib.import_module(import_shim.TOKENIZERS)
    with import_shim.skip_unused():
        assert sys.modules[import_shim.TOKENIZERS] is before


def test_package_has_nothing_it_does_not_have() -> None:
    package = import_shim.Package("nothing")
    with pytest.raises(AttributeError, match="'nothing' has no attribute 'load'"):
        _ = package.load
