"""GGUF files of a repository by their quantisation, whole and by layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from huggingface_hub import close_session
from safetensors.numpy import load_file

from parallax_core.api import ModelSource, ParallaxError, SourceContext, UnknownName, silent
from parallax_core.api.source import find_missing
from parallax_core.testing.partial_source import PartialSourceConformance
from parallax_source_hub.gguf_files import KIND, list_kinds, name_kind
from parallax_source_hub.partial_file import RemoteFile
from parallax_source_hub.source import HubSource
from parallax_source_pypi.local import GgufSource
from tests.support.fakehub import FakeHub, Fault
from tests.support.tinyllama import HIDDEN, LAYERS, TinyLlama

NAME = "tiny/model-GGUF"
Make = Callable[[Path], dict[str, bytes]]
INNER = 8192
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def make_llama(folder: Path, inner: int = 64) -> dict[str, bytes]:
    """Return a file in Q8_0; of its two layers, each has three matrices of `HIDDEN` x ``inner``."""
    llama = TinyLlama(packing=Q8_0)
    llama.values["llama.feed_forward_length"] = inner
    random = np.random.default_rng(1)
    for layer in range(LAYERS):
        for name in ("gate", "up", "down"):
            shape = (HIDDEN, inner) if name == "down" else (inner, HIDDEN)
            llama.tensors[f"blk.{layer}.ffn_{name}.weight"] = random.standard_normal(shape, np.float32)
    return {"tiny-Q8_0.gguf": llama.write(folder / "written.gguf").read_bytes()}


def split_llama(folder: Path) -> dict[str, bytes]:
    """Return the model in two files, in a folder of the repository."""
    llama, files = TinyLlama(packing=Q8_0), {}
    names = list(llama.tensors)
    for number in range(2):
        told = llama.values | {"split.no": number, "split.count": 2}
        part = TinyLlama(values=told, tensors={name: llama.tensors[name] for name in names[number::2]}, packing=Q8_0)
        name = f"Q8_0/tiny-Q8_0-{number + 1:05d}-of-00002.gguf"
        files[name] = part.write(folder / "written.gguf").read_bytes()
    return files


def is_first(name: str) -> bool:
    return name.startswith("model.layers.0.")


class TestGguf(PartialSourceConformance):
    known = (f"{NAME}:Q8_0", "tiny/other@main:q8_0")
    unknown = f"{NAME}:Q9_9"
    impossible = f"{NAME}:../up"

    @pytest.fixture(autouse=True)
    def _serve(self, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        folder = tmp_path_factory.mktemp("gguf")
        with FakeHub() as self.hub:
            self.hub.add(NAME, make_llama(folder, 512))
            self.hub.add("tiny/other", split_llama(folder))
            monkeypatch.setenv("HF_ENDPOINT", self.hub.endpoint)
            yield
            close_session()

    def make_source(self, folder: Path) -> ModelSource:
        return HubSource(SourceContext(folder=folder), pauses_s=())


@pytest.mark.parametrize("make", [make_llama, split_llama])
def test_model_of_the_hub_is_that_of_the_file_itself(
    hub: FakeHub, source: HubSource, tmp_path: Path, make: Make
) -> None:
    files = make(tmp_path)
    hub.add(NAME, files)
    for name, content in files.items():
        (tmp_path / Path(name).name).write_bytes(content)
    first = str(tmp_path / Path(next(iter(files))).name)
    expected = GgufSource(SourceContext(folder=tmp_path / "local")).fetch(first, silent).path
    model = source.fetch(f"{NAME}:q8_0", silent)
    assert model.ref == f"hf:{NAME}:Q8_0"
    assert sorted(model.listed_weights) == sorted(files)
    texts = [path.name for path in expected.glob("*.json*") if path.name != "parallax.json"]
    assert len(texts) == len(list(model.path.glob("[!.]*.json"))) == 4
    for name in texts:
        assert (model.path / name).read_bytes() == (expected / name).read_bytes()
    ours, theirs = load_file(model.path / "model.safetensors"), load_file(expected / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values)
    assert not (model.path / ".gguf").exists()


def test_stage_fetches_the_bytes_of_its_layers_once_and_keeps_one_copy(
    hub: FakeHub, source: HubSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parallax_source_hub.gguf_download.FIRST_BYTES", 4096)
    [content] = make_llama(tmp_path, INNER).values()
    hub.add(NAME, {"tiny-Q8_0.gguf": content})
    name, layer_bytes = f"{NAME}:Q8_0", 3 * HIDDEN * INNER // 32 * 34
    path = source.fetch_without_weights(name, silent).path
    header_bytes = hub.num_sent
    assert header_bytes < 2**16
    assert (path / "model.safetensors").stat().st_size > LAYERS * layer_bytes
    assert source.fetch_tensors(name, is_first, silent).path == path
    assert not any(map(is_first, find_missing(path)))
    assert layer_bytes < hub.num_sent - header_bytes < layer_bytes + 2**16
    sparse = path / ".gguf" / "tiny-Q8_0.gguf"
    assert sparse.stat().st_size == len(content)
    assert sparse.stat().st_blocks * 512 < layer_bytes / 4
    source.fetch(name, silent)
    assert hub.num_sent < len(content) + 2**16


def test_damaged_file_is_refused_before_it_becomes_a_model(hub: FakeHub, source: HubSource, tmp_path: Path) -> None:
    hub.add(NAME, make_llama(tmp_path))
    hub.faults += [Fault("", times=2), Fault("", corrupt=True)]
    with pytest.raises(ParallaxError, match="arrived damaged"):
        source.fetch(f"{NAME}:Q8_0", silent)
    assert source.stored() == []
    assert source.fetch(f"{NAME}:Q8_0", silent).path.name == "tiny--model-GGUF+Q8_0"


def test_unknown_quantisation_lists_those_that_exist(hub: FakeHub, source: HubSource) -> None:
    names = ["m-Q4_K_M.gguf", "m.Q8_0.gguf", "mmproj-F16.gguf", "UD-Q2_K_XL/m-UD-Q2_K_XL-00001-of-00002.gguf", "x.txt"]
    hub.add(NAME, dict.fromkeys(names, b"GGUF"))
    with pytest.raises(UnknownName, match=f"{NAME} has no GGUF file in 'Q5_K_M'") as caught:
        source.fetch(f"{NAME}:Q5_K_M", silent)
    assert caught.value.hint.startswith(
        "it has GGUF files in Q4_K_M, Q8_0, UD-Q2_K_XL; write one of them after a colon"
    )
    with pytest.raises(ParallaxError, match=r"no \*\.safetensors") as other:
        source.fetch(NAME, silent)
    assert "in Q4_K_M, Q8_0, UD-Q2_K_XL" in other.value.hint


def test_setting_that_would_be_a_download_of_its_own_is_refused(
    hub: FakeHub, source: HubSource, tmp_path: Path
) -> None:
    llama = TinyLlama()
    llama.tensors["rope_freqs.weight"] = np.ones(2**19, np.float32)
    hub.add(NAME, {"m-F32.gguf": llama.write(tmp_path / "x.gguf").read_bytes()})
    with pytest.raises(ParallaxError, match=r"'rope_freqs\.weight' has more than"):
        source.fetch_without_weights(f"{NAME}:F32", silent)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\3\0\0\0" + b"\xff" * 16, b"x" * 5000])
def test_file_that_is_none_is_refused(hub: FakeHub, source: HubSource, content: bytes) -> None:
    hub.add(NAME, {"m-Q8_0.gguf": content})
    for fetch in (source.fetch, source.fetch_without_weights):
        with pytest.raises(ParallaxError):
            fetch(f"{NAME}:Q8_0", silent)


@pytest.mark.parametrize(
    ("stem", "kind"),
    [
        ("SmolLM2-135M-Instruct-Q4_K_M", "Q4_K_M"),
        ("smollm2-135m-instruct-q8_0", "Q8_0"),
        ("model.i1-IQ2_XXS", "i1-IQ2_XXS"),
        ("gpt-oss-20b-mxfp4", "MXFP4"),
        ("UD-Q4_K_XL/Qwen3-UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("Qwen3-4B-bf16", "BF16"),
        ("Q2-model", "Q2-model"),
    ],
)
def test_quantisation_is_read_from_the_name(stem: str, kind: str) -> None:
    assert name_kind(stem) == kind
    assert KIND.groups == 1


def test_models_of_one_quantisation_go_by_their_names() -> None:
    listing = [RemoteFile(name, 1, "") for name in ("a-Q8_0.gguf", "b-Q8_0.gguf", "b-Q4_0.gguf", "../c-Q5_0.gguf")]
    assert sorted(list_kinds(listing)) == ["Q4_0", "a-Q8_0", "b-Q8_0"]
