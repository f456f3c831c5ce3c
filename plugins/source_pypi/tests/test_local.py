"""GGUF files by their paths: the whole contract of a source, and weights that keep every bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from parallax_core.api import ModelSource, ParallaxError, SourceContext, UnknownName, silent
from parallax_core.testing.source import SourceConformance
from parallax_source_pypi.local import GgufSource
from tests.support.tinyllama import HEAD_DIM, HEADS, KV_HEADS, TinyLlama


class TestGguf(SourceConformance):
    impossible = "model.bin"

    @pytest.fixture(autouse=True)
    def _write_files(self, gguf_bytes: bytes, tmp_path: Path) -> None:
        paths = [tmp_path / f"{name}.gguf" for name in ("one", "two", "three")]
        for path in paths[:2]:
            path.write_bytes(gguf_bytes)
        self.known, self.unknown = [str(path) for path in paths[:2]], str(paths[2])

    def make_source(self, folder: Path) -> ModelSource:
        return GgufSource(SourceContext(folder=folder))


@pytest.fixture
def source(tmp_path: Path) -> GgufSource:
    return GgufSource(SourceContext(folder=tmp_path / "home"))


@pytest.mark.parametrize("packing", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "MXFP4"])
def test_packed_tensors_keep_every_bit(source: GgufSource, llama: TinyLlama, tmp_path: Path, packing: str) -> None:
    kind = llama.packing = gguf.GGMLQuantizationType[packing]
    folder = source.fetch(str(llama.write(tmp_path / "tiny.gguf")), silent).path
    weights = load_file(folder / "model.safetensors")
    types = json.loads((folder / "config.json").read_text())["quantization_config"]["types"]
    assert set(types.values()) == {packing}
    assert types.keys() == {name for name, values in weights.items() if values.ndim == 2}
    for target, origin in {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.v_proj": "attn_v"}.items():
        packed = gguf.quants.quantize(llama.tensors[f"blk.1.{origin}.weight"], kind)
        np.testing.assert_array_equal(weights[f"model.layers.1.{target}.weight"], packed)
    norm = weights["model.layers.0.input_layernorm.weight"]
    np.testing.assert_array_equal(norm, llama.tensors["blk.0.attn_norm.weight"])
    for target, letter, heads in (("q_proj", "q", HEADS), ("k_proj", "k", KV_HEADS)):
        packed = gguf.quants.quantize(llama.tensors[f"blk.0.attn_{letter}.weight"], kind)
        found = weights[f"model.layers.0.self_attn.{target}.weight"].reshape(heads, 2, HEAD_DIM // 2, -1)
        np.testing.assert_array_equal(found.swapaxes(1, 2).reshape(packed.shape), packed)


def test_floats_are_kept(source: GgufSource, llama: TinyLlama, tmp_path: Path) -> None:
    llama.packing = gguf.GGMLQuantizationType.F16
    folder = source.fetch(str(llama.write(tmp_path / "tiny.gguf")), silent).path
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert load_file(folder / "model.safetensors")["model.embed_tokens.weight"].dtype == np.float16


def test_scales_that_are_no_numbers_are_refused(source: GgufSource, llama: TinyLlama, tmp_path: Path) -> None:
    llama.packing = gguf.GGMLQuantizationType.Q4_1
    llama.tensors["blk.0.ffn_up.weight"][0, 0] = 1e6
    with np.errstate(over="ignore"):
        path = llama.write(tmp_path / "tiny.gguf")
    with pytest.raises(ParallaxError, match=r"'blk\.0\.ffn_up\.weight' has values that are not finite"):
        source.fetch(str(path), silent)


def test_changed_file_is_made_again(source: GgufSource, llama: TinyLlama, tmp_path: Path) -> None:
    path = llama.write(tmp_path / "tiny.gguf")
    before = source.fetch(str(path), silent)
    llama.tensors["output_norm.weight"][:] = 3
    llama.write(path)
    assert source.find(str(path)) is None
    after = source.fetch(str(path), silent)
    assert after == before
    assert (load_file(after.path / "model.safetensors")["model.norm.weight"] == 3).all()
    assert len(source.stored()) == 1


def test_file_that_is_gone_is_still_served(source: GgufSource, llama: TinyLlama, tmp_path: Path) -> None:
    path = llama.write(tmp_path / "tiny.gguf")
    model = source.fetch(str(path), silent)
    path.unlink()
    assert source.find(str(path)) == source.fetch(str(path), silent) == model
    shutil.rmtree(model.path)
    with pytest.raises(UnknownName, match="there is no file"):
        source.fetch(str(path), silent)


def test_file_that_cannot_be_converted_is_told_before_it_is_fetched(
    source: GgufSource, llama: TinyLlama, tmp_path: Path
) -> None:
    path = llama.write(tmp_path / "tiny.gguf")
    assert source.find(str(path)) is None
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ParallaxError, match="damaged"):
        source.find(str(path))
    llama.family = "mamba"
    with pytest.raises(ParallaxError, match="mamba"):
        source.find(str(llama.write(path)))


def test_model_in_several_files_is_one_and_made_again_when_any_changes(
    source: GgufSource, llama: TinyLlama, tmp_path: Path
) -> None:
    names = list(llama.tensors)
    for number in range(2):
        told: dict[str, object] = {"split.no": number, "split.count": 2}
        part = TinyLlama(values=llama.values | told, tensors={name: llama.tensors[name] for name in names[number::2]})
        part.write(tmp_path / f"tiny-{number + 1:05d}-of-00002.gguf")
    name = str(tmp_path / "tiny-00001-of-00002.gguf")
    folder = source.fetch(name, silent).path
    assert len(load_file(folder / "model.safetensors")) == len(names)
    assert source.find(name) is not None
    part.write(tmp_path / "tiny-00002-of-00002.gguf")
    assert source.find(name) is None
