from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from parallax_core.api import ParallaxError, Unsupported, silent
from parallax_source_pypi.convert import ConversionOptions, convert_gguf
from tests.support.tinyllama import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, TOKENS, TinyLlama

Floats = npt.NDArray[np.float64]
Convert = Callable[..., Path]


@pytest.fixture
def convert(llama: TinyLlama, tmp_path: Path) -> Convert:
    def run(limit: int = 1 << 30) -> Path:
        folder = tmp_path / "model"
        folder.mkdir()
        convert_gguf(llama.write(tmp_path / "tiny.gguf"), folder, silent, "convert", ConversionOptions(limit))
        return folder

    return run


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_folder_has_the_standard_files(convert: Convert) -> None:
    assert sorted(path.name for path in convert().iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_config_says_what_the_file_says(convert: Convert) -> None:
    config = read_json(convert() / "config.json")
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": len(TOKENS),
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": True,
        "dtype": "float16",
        "torch_dtype": "float16",
    }
    assert {key: config[key] for key in expected} == expected


def test_several_ends_are_kept(llama: TinyLlama, convert: Convert) -> None:
    llama.values["tokenizer.ggml.eot_token_id"] = 0
    assert read_json(convert() / "generation_config.json") == {"bos_token_id": 1, "eos_token_id": [2, 0]}


def test_recommended_sampling_is_kept(llama: TinyLlama, convert: Convert) -> None:
    stated = {"temp": 0.2, "top_p": 0.9, "top_k": 20, "min_p": 0.0, "penalty_repeat": -1.0}
    llama.values |= {f"general.sampling.{name}": value for name, value in stated.items()}
    found = read_json(convert() / "generation_config.json")
    assert found == {"bos_token_id": 1, "eos_token_id": 2, "temperature": 0.2, "top_p": 0.9, "top_k": 20}


@pytest.mark.parametrize("value", [True, "hot", np.inf])
def test_recommended_sampling_that_is_no_number_is_named(llama: TinyLlama, convert: Convert, value: object) -> None:
    llama.values["general.sampling.temp"] = value
    with pytest.raises(ParallaxError, match=r"'general\.sampling\.temp' is .*, not a number"):
        convert()


def test_what_the_file_recommends_comes_before_what_is_known_of_its_wheel(llama: TinyLlama, tmp_path: Path) -> None:
    llama.values["general.sampling.temp"] = 0.5
    options = ConversionOptions(sampling={"temperature": 0.2, "top_p": 0.9})
    convert_gguf(llama.write(tmp_path / "tiny.gguf"), tmp_path, silent, "convert", options)
    found = read_json(tmp_path / "generation_config.json")
    assert (found["temperature"], found["top_p"]) == (0.5, 0.9)


def test_template_is_kept_as_it_is(llama: TinyLlama, convert: Convert) -> None:
    llama.values["tokenizer.chat_template"] = "{{ messages }}\r\n «é»\n"
    folder = convert()
    assert (folder / "chat_template.jinja").read_bytes() == "{{ messages }}\r\n «é»\n".encode()
    assert read_json(folder / "tokenizer_config.json")["chat_template"] == "{{ messages }}\r\n «é»\n"


def test_model_without_a_template_has_none(llama: TinyLlama, convert: Convert) -> None:
    llama.values["tokenizer.chat_template"] = None
    folder = convert()
    assert not (folder / "chat_template.jinja").exists()
    assert "chat_template" not in read_json(folder / "tokenizer_config.json")


def test_own_head_is_written(llama: TinyLlama, convert: Convert) -> None:
    head = llama.tensors["output.weight"] = np.ones((len(TOKENS), HIDDEN), np.float32)
    folder = convert()
    assert read_json(folder / "config.json")["tie_word_embeddings"] is False
    np.testing.assert_array_equal(load_file(folder / "model.safetensors")["lm_head.weight"], head)


def test_tensors_in_order_keep_their_values(llama: TinyLlama, convert: Convert) -> None:
    weights = load_file(convert() / "model.safetensors")
    assert len(weights) == len(llama.tensors)
    pairs = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.input_layernorm.weight": "blk.1.attn_norm.weight",
        "model.layers.1.post_attention_layernorm.weight": "blk.1.ffn_norm.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.1.self_attn.o_proj.weight": "blk.1.attn_output.weight",
        "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
        "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
    }
    for target, origin in pairs.items():
        np.testing.assert_array_equal(weights[target], llama.tensors[origin].astype(np.float16))


def turn_neighbours(x: Floats, angles: Floats) -> Floats:
    """Rotary embedding as llama.cpp does it for this architecture: dimensions 0 and 1 are a pair, 2 and 3, ..."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    cos, sin = np.cos(angles), np.sin(angles)
    even, odd = pairs[..., 0], pairs[..., 1]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def turn_halves(x: Floats, angles: Floats) -> Floats:
    """Rotary embedding as the standard layout has it: dimensions i and i + half are a pair."""
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def score(weights: list[Floats], turn: Callable[[Floats, Floats], Floats]) -> Floats:
    """Return q·k of every head at two positions; ``weights`` are those of q and k, of shape (rows, HIDDEN)."""
    query, key = weights
    x, y = np.random.default_rng(3).standard_normal((2, HIDDEN))
    angles = 100000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    q = turn((query @ x).reshape(HEADS, HEAD_DIM), 9 * angles)
    k = turn((key @ y).reshape(KV_HEADS, HEAD_DIM), 4 * angles)
    scores: Floats = np.einsum("ghd,gd->gh", q.reshape(KV_HEADS, -1, HEAD_DIM), k)
    return scores


def test_attention_is_the_same_in_both_layouts(llama: TinyLlama, convert: Convert) -> None:
    weights = load_file(convert() / "model.safetensors")
    names = ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight")
    ours = [weights[name].astype(np.float64) for name in names]
    theirs = [llama.tensors[f"blk.0.attn_{letter}.weight"].astype(np.float16).astype(np.float64) for letter in "qk"]
    np.testing.assert_allclose(score(ours, turn_halves), score(theirs, turn_neighbours), rtol=1e-9)
    assert not np.allclose(score(theirs, turn_halves), score(theirs, turn_neighbours), rtol=0.1)


@pytest.mark.parametrize("packing", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "BF16", "F16"])
def test_packed_tensors_are_unpacked(llama: TinyLlama, convert: Convert, packing: str) -> None:
    kind = llama.packing = gguf.GGMLQuantizationType[packing]
    weights = load_file(convert() / "model.safetensors")
    original = llama.tensors["blk.0.ffn_up.weight"]
    expected = gguf.quants.dequantize(gguf.quants.quantize(original, kind), kind)
    np.testing.assert_array_equal(weights["model.layers.0.mlp.up_proj.weight"], expected.astype(np.float16))


def test_large_values_need_float32(llama: TinyLlama, convert: Convert) -> None:
    llama.tensors["blk.0.attn_q.weight"][3, 5] = 70000.0
    folder = convert()
    weights = load_file(folder / "model.safetensors")
    wide = {name for name, values in weights.items() if values.dtype == np.float32}
    assert wide == {"model.layers.0.self_attn.q_proj.weight"}
    assert weights[wide.pop()].max() == 70000.0
    assert read_json(folder / "config.json")["dtype"] == "float32"


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_values_that_are_no_numbers_are_refused(llama: TinyLlama, convert: Convert, value: float) -> None:
    llama.tensors["blk.0.ffn_up.weight"][0, 0] = value
    with pytest.raises(ParallaxError, match=r"'blk\.0\.ffn_up\.weight' has values that are not finite"):
        convert()


def test_shards_hold_every_tensor_once(llama: TinyLlama, convert: Convert) -> None:
    folder = convert(limit=10_000)
    index = read_json(folder / "model.safetensors.index.json")
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert not list(folder.glob("*.part"))
    places = {name: file.name for file in files for name in load_file(file)}
    assert places == index["weight_map"]
    assert len(places) == len(llama.tensors)
    sizes = [sum(values.nbytes for values in load_file(file).values()) for file in files]
    assert sum(sizes) == index["metadata"]["total_size"]
    assert all(size <= 10_000 or len(load_file(file)) == 1 for size, file in zip(sizes, files, strict=True))


def test_shards_hold_what_one_file_would(llama: TinyLlama, tmp_path: Path) -> None:
    source = llama.write(tmp_path / "tiny.gguf")
    loaded = []
    for number, limit in enumerate([1 << 30, 5_000]):
        folder = tmp_path / str(number)
        folder.mkdir()
        convert_gguf(source, folder, silent, "convert", ConversionOptions(limit))
        loaded.append({name: it for file in folder.glob("*.safetensors") for name, it in load_file(file).items()})
    assert loaded[0].keys() == loaded[1].keys()
    assert all(np.array_equal(loaded[0][name], loaded[1][name]) for name in loaded[0])


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("llama.rope.scaling.type", "dynamic", "rope scaling of the type 'dynamic'"),
        ("llama.attention.sliding_window", 64, "setting 'llama.attention.sliding_window'"),
        ("llama.rope.dimension_count", 4, "'llama.rope.dimension_count' is not its head size 8"),
        ("llama.attention.value_length", 16, "'llama.attention.value_length' is not its head size 8"),
        ("tokenizer.ggml.model", "bert", "tokenizer of the kind 'bert'"),
        ("tokenizer.ggml.pre", "kimi-k2", "pre-tokenizer 'kimi-k2'"),
        ("tokenizer.ggml.pre", None, "pre-tokenizer 'default'"),
        ("tokenizer.ggml.add_space_prefix", True, "'add_space_prefix'"),
        ("tokenizer.ggml.token_type", [6] * len(TOKENS), "tokens of the type 6"),
    ],
)
def test_what_would_be_converted_wrongly_is_refused(
    llama: TinyLlama, convert: Convert, key: str, value: object, reason: str
) -> None:
    llama.values[key] = value
    with pytest.raises(Unsupported, match=reason) as caught:
        convert()
    assert "these architectures are read: llama, qwen2" in caught.value.hint


@pytest.mark.parametrize("name", ["blk.2.attn_q.weight", "blk.0.ffn_gate_exps.weight", "blk.0.ssm_a"])
def test_tensors_a_llama_does_not_have_are_refused(llama: TinyLlama, convert: Convert, name: str) -> None:
    llama.tensors[name] = np.ones(HIDDEN, np.float32)
    with pytest.raises(Unsupported, match=f"the tensor '{name}'"):
        convert()


def test_other_architectures_are_refused(llama: TinyLlama, convert: Convert) -> None:
    llama.family = "rwkv7"
    with pytest.raises(Unsupported, match="architecture 'rwkv7'") as caught:
        convert()
    assert "these architectures are read: llama, qwen2" in caught.value.hint


def test_tables_of_rope_that_are_not_those_of_llama_3_are_refused(llama: TinyLlama, convert: Convert) -> None:
    llama.tensors["rope_freqs.weight"] = np.array([1, 5, 2, 8], np.float32)
    with pytest.raises(Unsupported, match="a table of rope factors"):
        convert()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("llama.block_count", None, "it has no 'llama.block_count'"),
        ("llama.block_count", 3, r"it has no tensor 'blk\.2\.attn_norm\.weight'"),
        ("llama.block_count", (1 << 32) - 1, "it has no tensor"),
        ("llama.block_count", "two", "'llama.block_count' is 'two', not an integer"),
        ("llama.embedding_length", 16, r"'token_embd\.weight' has the shape \[265, 32\], not \[265, 16\]"),
        ("llama.attention.head_count", 0, "'llama.attention.head_count' is 0"),
        ("llama.attention.head_count_kv", 3, "do not fit together"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "is nan, not a positive number"),
        ("llama.vocab_size", 5, "'llama.vocab_size' is not the number of its tokens, 265"),
        ("tokenizer.ggml.eos_token_id", None, "it has no 'tokenizer.ggml.eos_token_id'"),
        ("tokenizer.ggml.eos_token_id", 265, "is 265, and there are 265 tokens"),
        ("tokenizer.ggml.tokens", [*TOKENS[:-1], TOKENS[0]], "not distinct"),
        ("tokenizer.ggml.merges", ["he zz"], "the merge 'he zz'"),
        ("tokenizer.ggml.merges", ["hello"], "the merge 'hello'"),
        ("tokenizer.chat_template", 5, "'tokenizer.chat_template' is 5, not a string"),
    ],
)
@pytest.mark.timeout(10)
def test_values_that_make_no_sense_are_named(
    llama: TinyLlama, convert: Convert, key: str, value: object, reason: str
) -> None:
    llama.values[key] = value
    with pytest.raises(ParallaxError, match=reason) as caught:
        convert()
    assert caught.value.hint


def test_progress_counts_tensors(llama: TinyLlama, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None, str]] = []
    folder = tmp_path / "model"
    folder.mkdir()
    source = llama.write(tmp_path / "tiny.gguf")
    convert_gguf(source, folder, lambda task, done, total, unit="bytes": seen.append((task, done, total, unit)), "work")
    count = len(llama.tensors)
    assert seen == [("work", done, count, "items") for done in range(count + 1)]
