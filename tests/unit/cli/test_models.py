from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.cli.models import list_models, pull, rm, show
from parallax_core.config.home import models_folder
from parallax_core.contracts.progress import silent
from parallax_core.models.catalog import Catalog
from parallax_core.plugins.host import PluginHost
from tests.support.fakehub import FakeHub
from tests.support.tinyhub import LAYERED, LAYERS, Stage
from tests.support.tinyllama import TinyLlama

NAME = "tiny/model"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 8,
    "max_position_embeddings": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
    "vocab_size": 2,
}
TOKENIZER = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")).to_str().encode()
WHOLE_MB = f"{sum(map(len, LAYERED.values())) / 10**6:.0f} MB"


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        small = {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": TOKENIZER}
        hub.add(NAME, LAYERED | small)
        yield hub
        close_session()


def read_row(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `list` says of the model, with single spaces."""
    list_models()
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"hf:{NAME}")]
    return " ".join(row.split())


def test_part_of_a_model_is_listed_with_its_layers(capsys: pytest.CaptureFixture[str]) -> None:
    catalog = Catalog(PluginHost.prepare())
    folder = catalog.fetch_without_weights(NAME, silent).path
    assert read_row(capsys) == f"hf:{NAME} 0 of {WHOLE_MB} none of 30 {folder}"
    for stage, layers in ((Stage(10, 20), "10-20"), (Stage(28, 29), "10-20,28-29")):
        catalog.fetch_tensors(NAME, stage.wants, silent)
        assert f"of {WHOLE_MB} {layers} of 30 {folder}" in read_row(capsys)


def test_pull_fetches_the_rest_of_a_part(capsys: pytest.CaptureFixture[str], hub: FakeHub) -> None:
    Catalog(PluginHost.prepare()).fetch_tensors(NAME, Stage(10, 20).wants, silent)
    pull(NAME)
    path = capsys.readouterr().out.strip()
    assert path == str(models_folder() / "hf" / "tiny--model")
    assert read_row(capsys) == f"hf:{NAME} {WHOLE_MB} all {path}"
    assert hub.num_sent < sum(map(len, LAYERED.values())) + 10_000


def test_show_describes_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownName, match="is not on this machine"):
        show(NAME)
    Catalog(PluginHost.prepare()).fetch_tensors(NAME, Stage(0, 10).wants, silent)
    show(NAME)
    rows = {line[:17].strip(): line[17:].strip() for line in capsys.readouterr().out.splitlines()}
    assert rows["model"] == f"hf:{NAME}"
    assert rows["size"].endswith(f" of {WHOLE_MB}")
    assert rows["layers here"] == "0-10 of 30"
    pull(NAME)
    capsys.readouterr()
    show(NAME)
    assert "layers here" not in capsys.readouterr().out


def test_part_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    Catalog(PluginHost.prepare()).fetch_tensors(NAME, Stage(0, 10).wants, silent)
    rm(NAME)
    assert f"removed {NAME}, 2 MB freed" in capsys.readouterr().out
    with pytest.raises(UnknownName, match="is not stored"):
        rm(NAME)


def test_folder_that_was_damaged_does_not_keep_others_from_being_listed(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Catalog(PluginHost.prepare()).fetch_tensors(NAME, Stage(0, 10).wants, silent).path
    (folder / "model.safetensors").write_bytes(b"short")
    assert "not known" in read_row(capsys)


def test_show_says_what_a_file_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.gguf"
    with pytest.raises(UnknownName, match="there is no file"):
        show(f"gguf:{path}")
    TinyLlama().write(path)
    with pytest.raises(UnknownName, match="has not been converted yet") as caught:
        show(f"gguf:{path}")
    assert f"`parallax models pull gguf:{path}` converts it" in caught.value.hint
    pull(f"gguf:{path}")
    show(f"gguf:{path}")
    assert "LlamaForCausalLM" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ParallaxError, match="damaged"):
        show(f"gguf:{path}")
