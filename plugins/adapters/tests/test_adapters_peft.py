"""The reader of PEFT's format reads adapters or refuses them by name, in bounded time and memory."""

from __future__ import annotations

import json
import math
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_adapters.peft_config import MOST_RANK, parse_config
from parallax_adapters.peft_files import MOST_HEADER_BYTES, read_adapter, to_floats
from parallax_adapters.store import AdapterStore
from parallax_core.api import ParallaxError, Unsupported
from tests.support.tiny_adapters import encode, make_matrices, write_adapter

SIZES = {"layers.0.self_attn.q_proj": (6, 8), "layers.1.mlp.down_proj": (8, 5)}
PLAIN = make_matrices(SIZES)
PREFIX = "base_model.model.model."


def config(**fields: Any) -> bytes:
    return json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, **fields}).encode()


def test_matrices_are_found_by_the_names_of_modules_in_layers(tmp_path: Path) -> None:
    adapter = read_adapter(write_adapter(tmp_path, PLAIN))
    assert adapter.modules.keys() == SIZES.keys()
    found = adapter.modules["layers.1.mlp.down_proj"]
    assert (found.a.shape, found.b.shape, found.scale, adapter.rank) == ((4, 5), (8, 4), 2.0, 4)
    wanted = PLAIN[f"{PREFIX}layers.1.mlp.down_proj.lora_A.weight"]
    assert np.array_equal(np.frombuffer(found.a.data, np.float32).reshape(4, 5), wanted)
    adapter.check_finite()


def test_scale_of_rslora_is_divided_by_the_root_of_the_rank() -> None:
    assert parse_config(config(r=16)).find_scale("x") == 0.5
    assert parse_config(config(r=16, use_rslora=True)).find_scale("x") == 2.0


def test_patterns_give_modules_ranks_and_alphas_of_their_own() -> None:
    found = parse_config(
        config(
            use_rslora=True,
            rank_pattern={"layers.1.mlp.down_proj": 2, "down_proj": 8, r"^model\.layers\.0\.mlp\.down_proj$": 16},
            alpha_pattern={"q_proj": 32},
        )
    )
    ranks = [found.find_rank(f"model.layers.{layer}.mlp.down_proj") for layer in range(3)]
    assert ranks == [8, 2, 8]  # the first match counts
    assert found.find_scale("model.layers.0.self_attn.q_proj") == 32 / math.sqrt(4)
    assert found.find_rank("model.layers.0.self_attn.kq_proj") == 4


def test_scales_are_those_of_peft() -> None:
    """The ranks and factors are what PEFT 0.21.2 has in its layers for an adapter with this configuration."""
    ranks = {".*mlp.*": 3, "^model.layers.1.self_attn.q_proj": 6, r"layers\.(0|2)\.self.*": 2}
    alphas = {r".*\.[qk]_proj": 10, "layers.3.mlp.down_proj": 1}
    found = parse_config(config(lora_alpha=6, use_rslora=True, rank_pattern=ranks, alpha_pattern=alphas))
    wanted = {
        "model.layers.0.self_attn.q_proj": (2, 7.071067811865475),
        "model.layers.0.self_attn.o_proj": (2, 4.242640687119285),
        "model.layers.1.self_attn.q_proj": (6, 4.08248290463863),
        "model.layers.1.self_attn.k_proj": (4, 5.0),
        "model.layers.2.mlp.up_proj": (3, 3.464101615137755),
        "model.layers.3.mlp.down_proj": (3, 0.5773502691896258),
    }
    assert {name: (found.find_rank(name), found.find_scale(name)) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("pattern", "module", "rank"),
    [
        ({"^a.b": 1, "b": 2}, "a.b", 1),
        ({"b": 2, "^a.b": 1}, "a.b", 2),
        ({"b": 2}, "a.bb", 4),
        ({"a.*": 1, "b": 2}, "x.a.b", 1),
        ({"b": 2, "a.*": 1}, "x.a.b", 2),
        ({"^a.*": 1}, "x.a.b", 4),
        ({r"layers\.(0|2)\..*": 1}, "model.layers.2.mlp.up_proj", 1),
        ({r"layers\.(0|2)\..*": 1}, "model.layers.12.mlp.up_proj", 4),
    ],
)
def test_first_match_of_a_pattern_counts(pattern: dict[str, int], module: str, rank: int) -> None:
    assert parse_config(config(rank_pattern=pattern)).find_rank(module) == rank


def test_names_of_wrapped_models_are_those_of_their_language_model(tmp_path: Path) -> None:
    for prefix in ("", "model.language_model.", "language_model.model.", "backbone."):
        folder = write_adapter(tmp_path / f"x{prefix}", make_matrices(SIZES, prefix=prefix))
        assert read_adapter(folder).modules.keys() == SIZES.keys()
    other = write_adapter(tmp_path / "vision", make_matrices(SIZES, prefix="model.vision_tower.encoder."))
    with pytest.raises(Unsupported, match=r"vision_tower\.encoder\.layers.*, which is in no layer of a language model"):
        read_adapter(other)


def test_engines_get_one_rank_and_one_scale(tmp_path: Path) -> None:
    small = make_matrices({"layers.0.self_attn.q_proj": (6, 8)}, rank=2)
    plain, store = (
        write_adapter(tmp_path / "plain", PLAIN, target_modules="all-linear"),
        AdapterStore(tmp_path / "store"),
    )
    patterns = {"rank_pattern": {".*q_proj": 2}, "alpha_pattern": {"down_proj": 32}, "use_rslora": True}
    made = write_adapter(tmp_path / "made", {**PLAIN, **small}, **patterns, target_modules=".*_proj")
    for folder, scale in ((plain, 2.0), (made, 1.0)):
        wanted = read_adapter(folder).modules
        exported = store.export(store.add(folder))
        settings = json.loads((exported / "adapter_config.json").read_text())
        assert (settings["r"], settings["target_modules"]) == (4, ["down_proj", "q_proj"])
        assert not any("pattern" in name or "rslora" in name for name in settings)
        for name, each in read_adapter(exported).modules.items():
            assert (each.rank, each.scale) == (4, scale)
            found, kept = (one.scale * (to_floats(one.b) @ to_floats(one.a)) for one in (each, wanted[name]))
            np.testing.assert_allclose(found, kept, rtol=1e-5, atol=1e-7)


def test_rank_of_each_module_is_that_of_its_pattern(tmp_path: Path) -> None:
    small = make_matrices({"layers.0.self_attn.q_proj": (6, 8)}, rank=2)
    folder = write_adapter(tmp_path, {**PLAIN, **small}, rank_pattern={"q_proj": 2})
    found = read_adapter(folder).modules
    assert [found[name].rank for name in SIZES] == [2, 4]
    assert [found[name].scale for name in SIZES] == [4.0, 2.0]
    write_adapter(tmp_path, {**PLAIN, **small})
    with pytest.raises(Unsupported, match=r"self_attn.q_proj has matrices of shapes .* and the rank 4"):
        read_adapter(folder)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"use_dora": True}, "DoRA is not supported"),
        ({"bias": "all"}, "bias is not supported"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_parameters": ["mlp.experts.weight_scale"]}, "target_parameters"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"layer_replication": [[0, 4]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"use_qalora": True}, "use_qalora"),
        ({"kasa_config": {"beta": 1e-4}}, "kasa_config"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"init_lora_weights": "olora"}, "init_lora_weights"),
        ({"init_lora_weights": 1}, "init_lora_weights"),
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'"),
        ({"peft_type": None}, "peft_type is None"),
        ({"r": 10**6}, f"between 1 and {MOST_RANK}"),
        ({"r": 0}, "between 1"),
        ({"r": True}, "between 1"),
        ({"lora_alpha": 1e30}, "lora_alpha"),
        ({"lora_alpha": math.nan}, "lora_alpha"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"rank_pattern": {"(?=a)": 4}}, "rank_pattern: the expression .* is not understood"),
        ({"alpha_pattern": {f"a{number}*": 4 for number in range(65)}}, "alpha_pattern has 65 regular expressions"),
        ({"rank_pattern": {"q_proj": 10**6}}, "rank_pattern has the rank 1000000"),
        ({"alpha_pattern": [1]}, "alpha_pattern must be an object"),
        ({"use_rslora": "yes"}, "use_rslora"),
    ],
)
def test_what_would_compute_something_else_is_refused_by_name(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        parse_config(config(**fields))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"r": ' + b"9" * 10_000 + b"}",
        b'{"peft_type": "LORA", "r": 4, "r": 8}',
    ],
)
def test_damaged_settings_are_refused(text: bytes) -> None:
    with pytest.raises(Unsupported):
        parse_config(text)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({f"{PREFIX}layers.0.self_attn.q_proj.lora_B.weight": np.zeros((6, 3), np.float32)}, "shapes"),
        ({f"{PREFIX}layers.0.self_attn.q_proj.lora_A.weight": np.zeros((4, 0), np.float32)}, "shapes"),
        ({f"{PREFIX}layers.0.self_attn.q_proj.lora_A.weight": np.zeros(32, np.float32)}, "shapes"),
        ({f"{PREFIX}layers.9.mlp.up_proj.lora_A.weight": np.zeros((4, 8), np.float32)}, "only one of its two"),
        ({f"{PREFIX}layers.0.self_attn.q_proj.lora_magnitude_vector": np.zeros(6, np.float32)}, "magnitude_vector"),
        ({f"{PREFIX}embed_tokens.lora_embedding_A": np.zeros((4, 9), np.float32)}, "lora_embedding_A"),
        (make_matrices({"lm_head": (9, 8)}, prefix=""), "lm_head, which is in no layer"),
        (make_matrices({"layers.0.self_attn.q_proj": (6, 8)}, prefix="backbone."), "two modules"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        read_adapter(write_adapter(tmp_path, {**PLAIN, **changes}))


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.uint16])
@pytest.mark.parametrize("name", ["lora_A", "lora_B"])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, kind: Any, name: str) -> None:
    bad = {key: array if kind is not np.uint16 else np.zeros(array.shape, kind) for key, array in PLAIN.items()}
    bad = {key: array.astype(kind) for key, array in bad.items()}
    read_adapter(write_adapter(tmp_path, bad)).check_finite()
    bad[f"{PREFIX}layers.1.mlp.down_proj.{name}.weight"].flat[-1] = 0x7F80 if kind is np.uint16 else np.nan
    with pytest.raises(Unsupported, match=r"layers\.1\.mlp\.down_proj has numbers that are not finite"):
        read_adapter(write_adapter(tmp_path, bad)).check_finite()


def test_rank_above_that_of_the_server_is_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, PLAIN)
    assert read_adapter(tmp_path, 4).rank == 4
    with pytest.raises(Unsupported, match="has the rank 4; at most 3"):
        read_adapter(tmp_path, 3)


class Bomb:
    """An object whose pickle writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_pickle_is_refused_by_name_and_never_read(tmp_path: Path) -> None:
    write_adapter(tmp_path, PLAIN)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ParallaxError, match=r"there is no adapter_model.safetensors"):
        read_adapter(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(Unsupported, match=r"adapter_model.bin is a pickle"):
        read_adapter(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder, secret = write_adapter(tmp_path / "a", PLAIN), write_adapter(tmp_path / "secret", PLAIN)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        text = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).symlink_to(secret / name)
        with pytest.raises(Unsupported, match=f"{name} is not a regular file in"):
            read_adapter(folder)
        (folder / name).unlink()
        (folder / name).write_bytes(text)
    (folder / "adapter_config.json").unlink()
    os.mkfifo(folder / "adapter_config.json")
    with pytest.raises(Unsupported, match="not a regular file"):
        read_adapter(folder)


@pytest.mark.parametrize("name", ["x\0y", "a" * 5000, "../../etc"])
def test_folder_that_cannot_exist_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ParallaxError, match=r"there is no adapter_config\.json"):
        read_adapter(tmp_path / name)


def test_header_longer_than_allowed_is_refused_unread(tmp_path: Path) -> None:
    write_adapter(tmp_path, PLAIN)
    with (tmp_path / "adapter_model.safetensors").open("wb") as file:
        file.write((MOST_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(2**33)  # a hole: it takes no space
    begun = time.process_time()
    with pytest.raises(Unsupported, match="has a header of"):
        read_adapter(tmp_path)
    assert time.process_time() - begun < 5


def test_matrices_over_each_other_are_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, PLAIN)
    data = encode(PLAIN)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for number in range(2, 40):  # each takes the whole data again
        for part, shape in (("A", [4, 8]), ("B", [6, 4])):
            name = f"{PREFIX}layers.{number}.mlp.up_proj.lora_{part}.weight"
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * shape[0] * shape[1]]}
    text = json.dumps(header).encode()
    (tmp_path / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    with pytest.raises(Unsupported, match="lie over each other"):
        read_adapter(tmp_path)


DATA = encode(PLAIN)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, 40)
)
def test_damaged_weights_are_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    write_adapter(folder, PLAIN)
    data = bytearray(DATA)
    for place, value in changes:
        data[place] = value
    (folder / "adapter_model.safetensors").write_bytes(bytes(data[: len(data) - cut]))
    try:
        read_adapter(folder).check_finite()
    except ParallaxError as error:
        assert len(error.message) < 2000  # noqa: PT017 -- most pass


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "bias", "init_lora_weights"]
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_settings_are_read_or_refused_and_nothing_else(fields: dict[str, Any]) -> None:
    try:
        found = parse_config(config(**fields))
    except Unsupported as error:
        assert len(error.message) < 2000  # noqa: PT017 -- most pass
    else:
        assert math.isfinite(found.find_scale("model.layers.0.self_attn.q_proj"))


def test_store_names_adapters_by_their_content(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path / "store")
    one, other = write_adapter(tmp_path / "one", PLAIN), write_adapter(tmp_path / "other", PLAIN, lora_alpha=16)
    key = store.add(one)
    assert store.add(write_adapter(tmp_path / "copy", PLAIN)) == key != store.add(other)
    assert store.open(key).modules.keys() == SIZES.keys()
    (one / "adapter_model.safetensors").write_bytes(b"")  # the copy is its own
    assert store.open(key).rank == 4
    store.remove(key)
    store.remove(key)
    assert not store.has(key)
    with pytest.raises(ParallaxError, match="is not on this machine"):
        store.open(key)
    assert not list((tmp_path / "store").glob(".new-*"))


@pytest.mark.parametrize("key", ["", "..", "../../etc", "a" * 31, "A" * 32, "a" * 32 + "\n"])
def test_store_reads_no_path(tmp_path: Path, key: str) -> None:
    with pytest.raises(ParallaxError, match="is no key of an adapter"):
        AdapterStore(tmp_path).open(key)


def test_store_keeps_nothing_of_an_adapter_that_is_refused(tmp_path: Path) -> None:
    bad = {name: np.full_like(array, np.inf) for name, array in PLAIN.items()}
    with pytest.raises(Unsupported, match="not finite"):
        AdapterStore(tmp_path / "store").add(write_adapter(tmp_path / "bad", bad))
    assert not list((tmp_path / "store").iterdir())


def test_matrix_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "made", PLAIN)
    path, name = folder / "adapter_model.safetensors", next(iter(PLAIN))
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = (
        data[8:end].rstrip()[:-1] + f', "{name}": '.encode() + json.dumps(json.loads(data[8:end])[name]).encode() + b"}"
    )
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])
    with pytest.raises(Unsupported, match="is there twice"):
        read_adapter(folder)


def test_file_that_became_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_adapter(tmp_path / "made", PLAIN)

    def change(source: Path) -> int:
        path = source / "adapter_config.json"
        path.unlink()
        os.mkfifo(path)
        return 0

    monkeypatch.setattr("parallax_adapters.store.check_files", change)
    with pytest.raises(ParallaxError, match="has just been changed"):
        AdapterStore(tmp_path / "store").add(folder)
    assert not list((tmp_path / "store").iterdir())
