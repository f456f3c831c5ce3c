"""``parallax models quantize``: what it writes, read by other programs, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils
import numpy as np
import pytest
import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationScheme
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from parallax_core.api import ParallaxError, UsageError
from parallax_core.testing.dialect import write_tokenizer
from parallax_quantize.cli import app
from tests.support.checkpoints import save_family
from tests.support.quantised import read_folder, write_folders

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
MOST = {"int8": 0.04, "int5": 0.2, "int4": 0.25, "int4_plain": 0.3, "mxfp4": 0.6}
"""The most that logits may change on average, by form."""
SIZES = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96, "vocab_size": 256, "initializer_range": 0.1}
TEXT = "".join(
    f"The products of the inputs of matrix {at} are summed over a text, and this is one. " for at in range(30)
)
ALPHABET = sorted(ByteLevel.alphabet())
IDS = [[ALPHABET.index(each) for each in TEXT[:200].replace(" ", "Ġ")]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with a tokenizer of bytes."""
    folder, other = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("bytes")
    write_tokenizer(other)
    save_family("llama", folder, **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    shutil.copy(other / "tokenizer.json", folder)
    (folder.parent / "text.txt").write_text(TEXT)
    return folder


def quantize(model: Path, *options: object) -> str:
    """Return what the command prints."""
    return CliRunner().invoke(app, [str(model), *map(str, options)], catch_exceptions=False).stdout


def read_floats(coded: Path, root: Path) -> Any:
    """Return the logits of the floats that a folder stands for by our readers, computed by transformers."""
    settings = json.loads((coded / "config.json").read_text())
    own = {name: settings[name] for name in ("quantization", "quantization_config") if name in settings}
    floats = write_folders(coded, root, read_folder(coded), own)[1]
    config = json.loads((floats / "config.json").read_text())
    kept = {name: value for name, value in config.items() if name not in own}
    (floats / "config.json").write_text(json.dumps(kept))
    return compute(floats)


def compute(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor(IDS)).logits[0].numpy()


@pytest.mark.parametrize("form", MOST)
def test_mlx_lm_reads_what_is_written(plain: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    assert "read by mlx-lm" in quantize(plain, "--to", form, "--out", out)
    model, _ = mlx_lm.utils.load_model(out)
    model.set_dtype(mx.float32)
    found = np.array(model(mx.array(IDS))[0].astype(mx.float32))
    np.testing.assert_allclose(found, read_floats(out, tmp_path / "read"), rtol=2e-3, atol=2e-3)
    assert np.abs(found - compute(plain)).mean() < MOST[form]
    assert (out / "tokenizer.json").read_bytes() == (plain / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_compressed_tensors_reads_what_is_written(plain: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    assert "read by vLLM" in quantize(plain, "--to", form, "--for", "compressed-tensors", "--out", out)
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    assert settings["ignore"] == ["model.embed_tokens", "lm_head"]
    scheme = QuantizationScheme(**settings["config_groups"]["group_0"])
    coded = read_folder(out)
    found = read_floats(out, tmp_path / "read")
    floats = read_folder(tmp_path / "read" / "floats")
    stems = [name.removesuffix(".weight_packed") for name in coded if name.endswith(".weight_packed")]
    assert len(stems) == 4 * 7
    for stem in stems:
        parts = {name.rpartition(".")[2]: part for name, part in coded.items() if name.startswith(f"{stem}.")}
        wanted = PackedQuantizationCompressor.decompress(parts, scheme)["weight"].float()
        torch.testing.assert_close(floats[f"{stem}.weight"], wanted, rtol=1e-6, atol=1e-6)
    assert np.abs(found - compute(plain)).mean() < {"int8": 0.04, "int4": 0.3}[form]


def test_outputs_change_less_after_a_text(plain: Path, tmp_path: Path) -> None:
    wanted, changed = compute(plain), []
    for name, options in (("without", ()), ("with", ("--calibrate", plain.parent / "text.txt"))):
        quantize(plain, "--to", "int4", "--out", tmp_path / name, *options)
        changed.append(np.square(read_floats(tmp_path / name, tmp_path / f"{name} read") - wanted).mean())
    assert changed[1] < changed[0]


def test_refusals_leave_nothing(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def refuse(wanted: type[ParallaxError], words: str, *options: object, model: Path = plain) -> None:
        with pytest.raises(wanted, match=words):
            quantize(model, "--out", out, *options)
        assert not any(tmp_path.glob("*out*"))

    refuse(UsageError, "--to int3 --for mlx --group 32 is not known", "--to", "int3")
    refuse(UsageError, "--for onnx", "--to", "int4", "--for", "onnx")
    refuse(UsageError, "mxfp4 is written for mlx", "--to", "mxfp4", "--for", "compressed-tensors")
    refuse(UsageError, "int5 is written for mlx", "--to", "int5", "--for", "compressed-tensors")
    refuse(ParallaxError, "at least 1024 are needed", "--to", "int4", "--calibrate", plain / "config.json")
    refuse(ParallaxError, "no matrix whose inputs are groups of 128", "--to", "int4", "--group", "128")
    refuse(ParallaxError, "there is no folder", "--to", "int4", "--out", tmp_path / "no" / "such")
    refuse(ParallaxError, "there is no folder", "--to", "int4", model=tmp_path / "none")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**40, 2**40, 2**20))
        refuse(ParallaxError, "and 1 MiB are free", "--to", "int4")
    quantize(plain, "--to", "int4", "--out", out)
    with pytest.raises(ParallaxError, match="exists"):
        quantize(plain, "--to", "int4", "--out", out)
    with pytest.raises(ParallaxError, match="quantised already: mlx"):
        quantize(out, "--to", "int4", "--out", tmp_path / "twice")


def test_a_run_that_ends_early_leaves_nothing(plain: Path, tmp_path: Path) -> None:
    """Its text has no end of a layer that it can read: the second layer's file is gone."""
    model = tmp_path / "model"
    shutil.copytree(plain, model)
    last = max(model.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-64])
    with pytest.raises(ParallaxError):
        quantize(model, "--to", "int4", "--out", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
