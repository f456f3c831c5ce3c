from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from parallax_core.api import LayerShape, ModelShape, list_borders
from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.config.home import models_folder
from parallax_core.contracts.progress import silent
from parallax_core.models.adapters import find_family
from parallax_core.models.catalog import Catalog
from parallax_core.plugins.host import PluginHost
from parallax_manage.models import describe_borders, describe_memory, list_models, pull, rm, show
from tests.support.checkpoints import save_family
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


def test_memory_is_described_by_what_grows_and_what_does_not() -> None:
    window = LayerShape(kind="window", weights=30, active_weights=10, kv_width=4, window=8)
    layers = (window, LayerShape(kind="state", weights=20, active_weights=20, state_width=50))
    shape = ModelShape(
        hidden_size=2,
        vocab_size=5,
        context_length=9,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        layers=layers,
        before_weights=10,
        after_weights=2,
        is_tied=True,
    )
    assert describe_memory(shape) == "4 per token in a window, 50 per sequence"


def test_model_is_shown_with_its_borders(tmp_path: Path) -> None:
    save_family("gemma4_text", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    family = find_family(PluginHost.prepare(), config)
    assert family is not None
    shape = family.adapter.read_shape(config)
    shown = dict(describe_borders(list_borders(shape)))
    assert shown == {
        "between stages": "hidden of 32, for each token: 64 bytes in 16 bits",
        "stages begin with": "layer 0, or 1 to 3: layer 5 reads the keys of layer 3",
    }


def test_models_of_other_programs_are_listed_with_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    owner = tmp_path / "cache/models--tiny--other"
    (owner / "refs").mkdir(parents=True)
    (owner / "refs/main").write_text("0" * 40)
    snapshot = owner / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for name, content in (LAYERED | {"tokenizer.json": TOKENIZER}).items():
        (snapshot / name).write_bytes(content)
    list_models()
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"hf:tiny/other {WHOLE_MB} {snapshot}" in rows[rows.index("OF ANOTHER PROGRAM SIZE PLACE") :]


@pytest.mark.parametrize("named", [None, ["Other"], []])
def test_show_reads_the_settings_of_the_text_in_a_model_that_sees(
    named: object, hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"architectures": named, "dtype": None, "text_config": CONFIG | {"dtype": "bfloat16"}}
    hub.add(NAME, LAYERED | {"config.json": json.dumps(config).encode(), "tokenizer.json": TOKENIZER})
    pull(NAME)
    capsys.readouterr()
    show(NAME)
    rows = {line[:17].strip(): line[17:].strip() for line in capsys.readouterr().out.splitlines()}
    assert rows["architecture"] == ("Other" if named else "not stated")
    assert (rows["layers"], rows["hidden size"], rows["vocabulary"]) == (str(LAYERS), "8", "2")
    assert (rows["context"], rows["stored dtype"]) == ("64 tokens", "bfloat16")
