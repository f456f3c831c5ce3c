"""Models written as GGUF files, read by the package gguf, by our reader and, once converted, by transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from parallax_core.api import ParallaxError, UsageError, silent
from parallax_quantize.cli import app
from parallax_quantize.folder import appearing
from parallax_quantize.gguf.kquants import quantize
from parallax_quantize.gguf.mix import MIXES, choose_type
from parallax_source_pypi.convert import ConversionOptions, convert_gguf
from parallax_source_pypi.pretokenizers import RULES
from tests.support.gguf_kin import KIN, Kin
from tests.support.gguf_models import save_original

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
WRITTEN = (
    *("llama", "mistral", "qwen2", "qwen3", "granite", "smollm3", "seed_oss"),
    *("mixtral", "qwen3_moe", "gpt_oss"),
)
KINDS = [kin for kin in KIN if kin.family in WRITTEN]
TEMPLATE = "{% for each in messages %}{{ each.content }}{% endfor %}"


def write_model(kin: Kin, folder: Path) -> Path:
    """Write a model, its numbers rounded to float16, with a tokenizer."""
    save_original(replace(kin, changes={**kin.changes, "vocab_size": 320}), folder)
    tensors = {name: tensor.half().float() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    vocab = {symbol: number for number, symbol in enumerate([*sorted(ByteLevel.alphabet()), "th", "he", "the", "Ġa"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("h", "e"), ("th", "e"), ("Ġ", "a")]))
    words = Split(Regex(RULES["qwen2"].patterns[0]), "isolated")
    tokenizer.pre_tokenizer = Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": {"content": "<|end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_gguf(model: Path, form: str, out: Path) -> str:
    """Return what the command prints."""
    return CliRunner().invoke(app, [str(model), "--to", form, "--out", str(out)], catch_exceptions=False).stdout


def compute(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([[3, 11, 5, 29, 17, 2, 40]])).logits[0].numpy()


@pytest.mark.parametrize("kin", KINDS, ids=lambda kin: kin.family)
def test_what_is_written_is_the_same_model(kin: Kin, tmp_path: Path) -> None:
    model, out, back = write_model(kin, tmp_path / "model"), tmp_path / "model.gguf", tmp_path / "back"
    assert "read by llama.cpp" in write_gguf(model, "gguf:F16", out)
    back.mkdir()
    convert_gguf(out, back, silent, "", ConversionOptions())
    np.testing.assert_allclose(compute(back), compute(model), rtol=1e-3, atol=1e-4)
    config = json.loads((model / "config.json").read_text())
    fields = gguf.GGUFReader(out).fields
    assert fields[f"{kin.name}.block_count"].contents() == config["num_hidden_layers"]
    assert fields["tokenizer.ggml.eos_token_id"].contents() == 260
    assert fields["tokenizer.chat_template"].contents() == TEMPLATE
    assert (back / "chat_template.jinja").read_text() == TEMPLATE
    texts = ("The theme, World's 1234 ünï\n\n  x", "中文 a  b<|end|>the <think> a", "")
    read, wanted = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (back, model))
    assert [read.encode(text).ids for text in texts] == [wanted.encode(text).ids for text in texts]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)) ** 3


@pytest.mark.parametrize(("kind", "most"), [("Q4_K", 0.1), ("Q5_K", 0.05), ("Q6_K", 0.03)])
def test_k_quants_are_read_and_lose_little(kind: str, most: float) -> None:
    rows = draw(6, 512)
    rows[1], rows[2], rows[3, :32], rows[4] = 0, -0.5, 2.0, rows[4].abs()
    data = quantize(kind, rows).numpy()
    number = gguf.GGMLQuantizationType[kind]
    assert data.shape == (6, 512 // 256 * gguf.GGML_QUANT_SIZES[number][1])
    found = torch.from_numpy(gguf.quants.dequantize(data, number))
    assert found.isfinite().all()
    assert not found[1].any()
    torch.testing.assert_close(found[2], rows[2], rtol=2e-3, atol=2e-3)
    assert (found - rows).square().mean().sqrt() < most * rows.square().mean().sqrt()


def test_types_are_those_of_llama_cpp() -> None:
    def count(form: str, matrix: str, width: int = 512) -> list[str]:
        names = [f"blk.{layer}.{matrix}.weight" for layer in range(16)]
        return [choose_type(MIXES[form], name, (8, width), 16, is_tied=True) for name in names]

    better = [*["Q6_K"] * 2, "Q4_K", "Q4_K", *["Q6_K", "Q4_K", "Q4_K"] * 3, "Q6_K", "Q6_K", "Q6_K"]
    assert count("Q4_K_M", "ffn_down") == count("Q4_K_M", "attn_v") == better
    assert count("Q4_K_M", "attn_q") == ["Q4_K"] * 16
    assert count("Q4_K_M", "attn_q", 576) == ["Q5_0"] * 16
    assert count("Q4_K_M", "attn_q", 40) == ["F16"] * 16
    assert count("Q4_K_S", "attn_v") == [*["Q5_K"] * 4, *["Q4_K"] * 12]
    assert choose_type(MIXES["Q4_0"], "token_embd.weight", (8, 512), 16, is_tied=True) == "Q6_K"
    assert choose_type(MIXES["Q4_0"], "token_embd.weight", (8, 512), 16, is_tied=False) == "Q4_0"
    assert choose_type(MIXES["Q4_0"], "output_norm.weight", (512,), 16, is_tied=False) == "F32"


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    model, out = write_model(KINDS[0], tmp_path / "model"), tmp_path / "out.gguf"
    config = json.loads((model / "config.json").read_text())
    tokenizer = json.loads((model / "tokenizer.json").read_text())

    def refuse(words: str, file: str = "config.json", content: Any = None, form: str = "gguf:Q8_0") -> None:
        kept = (model / file).read_text()
        (model / file).write_text(json.dumps(content or json.loads(kept)))
        with pytest.raises(ParallaxError, match=words):
            write_gguf(model, form, out)
        (model / file).write_text(kept)
        assert not any(tmp_path.glob("*out*"))

    refuse("gguf:Q1 .* is not known", form="gguf:Q1")
    refuse("models of the type 'gemma4' are not written", content={**config, "model_type": "gemma4"})
    rope = {"rope_type": "longrope", "rope_theta": 1e4}
    refuse("rope of the type 'longrope'", content={**config, "rope_parameters": rope})
    refuse("with a byte-level BPE", "tokenizer.json", {**tokenizer, "model": {"type": "Unigram", "vocab": []}})
    split = {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": False}
    refuse("no name for the pre-tokenizer 'x'", "tokenizer.json", {**tokenizer, "pre_tokenizer": split})
    with pytest.raises(UsageError, match="do not concern GGUF"):
        CliRunner().invoke(app, [str(model), "--to", "gguf:Q8_0", "--group", "64"], catch_exceptions=False)


def test_runs_to_one_place_leave_each_other_alone(tmp_path: Path) -> None:
    target, left = tmp_path / "out", tmp_path / ".out.gone.part"
    left.mkdir()
    with pytest.raises(ParallaxError, match="out exists"), appearing(target, 0) as first:  # noqa: PT012 -- at its end
        assert not left.exists()
        with appearing(target, 0) as second:
            (first / "x").write_text("1")
            (second / "x").write_text("2")
    assert (target / "x").read_text() == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_of_sentencepiece_become_the_same_tokens(tmp_path: Path, prefix: bool) -> None:
    model, out, back = write_model(KINDS[0], tmp_path / "model"), tmp_path / "model.gguf", tmp_path / "back"
    (model / "tokenizer.json").unlink()
    library = train_pieces(model, prefix=prefix)
    write_gguf(model, "gguf:F16", out)
    back.mkdir()
    convert_gguf(out, back, silent, "", ConversionOptions())
    fields = gguf.GGUFReader(out).fields
    assert fields["tokenizer.ggml.model"].contents() == "llama"
    assert fields["tokenizer.ggml.add_space_prefix"].contents() is prefix
    assert fields["tokenizer.ggml.add_bos_token"].contents() is True
    read = Tokenizer.from_file(str(back / "tokenizer.json"))
    for text in ("The theme of the day", "  two  spaces ", "ünï 中文 \U0001f642\n\tx", "a", "fox9 fox"):
        assert read.encode(text, add_special_tokens=False).ids == library.encode(text), text
    assert read.encode("<think>", add_special_tokens=False).ids == [310]


def train_pieces(folder: Path, *, prefix: bool = True, kind: str = "bpe", rule: str = "identity") -> Any:
    """Write a small model of SentencePiece, and settings that add a token; return it as the library reads it."""
    text = folder / "text.txt"
    text.write_text("".join(f"The quick brown fox {n} jumps over the lazy dog, says the theme.\n" for n in range(300)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=310,
        model_type=kind,
        byte_fallback=True,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name=rule,
        minloglevel=9,
    )
    added = {"310": {"content": "<think>", "special": False, "normalized": False}}
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "added_tokens_decoder": added}))
    for name in ("text.txt", "tokenizer.vocab"):
        (folder / name).unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


@pytest.mark.parametrize(
    ("kind", "rule", "words"), [("unigram", "identity", "unigrams"), ("bpe", "nfkc", "characters")]
)
def test_pieces_that_llama_cpp_does_not_have_are_refused(tmp_path: Path, kind: str, rule: str, words: str) -> None:
    model = write_model(KINDS[0], tmp_path / "model")
    (model / "tokenizer.json").unlink()
    train_pieces(model, kind=kind, rule=rule)
    with pytest.raises(ParallaxError, match=words):
        write_gguf(model, "gguf:F16", tmp_path / "out.gguf")
    assert not any(tmp_path.glob("*out*"))
