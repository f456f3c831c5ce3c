"""Some layers of a model: together they compute what the whole computes, and hold what it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_mlx.checkpoint import read_checkpoint
from parallax_backend_mlx.loading import load_network
from parallax_backend_mlx.model_slice import keep_model, slice_model
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.runtime import flatten_tree, mx
from parallax_backend_mlx.wanted_positions import Wanted
from parallax_core.api import LayerRange, StagePlan, TensorSpec, Unsupported
from tests.support.checkpoints import KINDS, LAYERS, find_layer, save_random
from tests.support.mlx_models import AFM7, RWKV7, make_model

STEPS = ([[5, 1, 88, 4, 4, 60], [9, 7, 31, 2, 96, 3]], [[17, 3, 8], [1, 1, 50]], [[7], [8]], [[90], [8]])
"""Prefill in two chunks, beyond the sliding windows, and two decodes: two sequences side by side."""
SPLITS = [[0, 1, 4], [0, 2, 4], [0, 3, 4], [0, 1, 2, 3, 4]]


class Loader:
    """Loads layers of random checkpoints, and keeps them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.load_network = cache(self._load_network)
        self.load_weights = cache(self._load_weights)

    def find_folder(self, kind: str) -> Path:
        """Return the folder of a checkpoint."""
        folder = self._folder / kind
        if not folder.exists():
            save_random(kind, folder)
        return folder

    def _load_network(self, kind: str, start: int, stop: int) -> Network:
        return Network(self._load(kind, start, stop)[0])

    def _load_weights(self, kind: str, start: int, stop: int) -> tuple[dict[str, mx.array], int]:
        model_slice, num_bytes = self._load(kind, start, stop)
        return dict(flatten_tree(model_slice.model.parameters())), num_bytes

    def _load(self, kind: str, start: int, stop: int) -> Any:
        folder = self.find_folder(kind)
        layers = None if (start, stop) == (0, LAYERS) else LayerRange(start, stop)
        return load_network(StagePlan(model=folder, layers=layers), read_checkpoint(folder).tensors)


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    return Loader(tmp_path_factory.mktemp("models"))


def run_chain(networks: Sequence[Network]) -> list[mx.array]:
    """Return the logits of every step, through all of ``networks``, each with a cache of its own."""
    caches = [network.make_cache() for network in networks]
    found = []
    for step in STEPS:
        tokens, hidden = mx.array(step, dtype=mx.int32), None
        wanted = Wanted(mx.arange(tokens.size, dtype=mx.int32))
        for network, held in zip(networks, caches, strict=True):
            hidden = network.run(tokens, hidden, held, wanted)
        assert hidden is not None
        mx.eval(hidden)
        found.append(hidden)
    return found


def is_equal(left: mx.array, right: mx.array) -> bool:
    return bool(mx.array_equal(left, right).item())


@pytest.mark.parametrize("kind", KINDS)
def test_every_split_gives_exactly_the_logits_of_the_whole(loader: Loader, kind: str) -> None:
    expected = run_chain([loader.load_network(kind, 0, LAYERS)])
    for cuts in SPLITS:
        found = run_chain([loader.load_network(kind, start, stop) for start, stop in pairwise(cuts)])
        assert [is_equal(left, right) for left, right in zip(found, expected, strict=True)] == [True] * len(STEPS)


def test_comparison_sees_a_layer_that_is_left_out(loader: Loader) -> None:
    expected = run_chain([loader.load_network("qwen3", 0, LAYERS)])
    found = run_chain([loader.load_network("qwen3", 0, 2), loader.load_network("qwen3", 3, 4)])
    assert not is_equal(found[0], expected[0])


def test_comparison_sees_a_cache_that_is_not_kept(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """What mlx-lm reads off the first cache of all must be right in a stage that does not have that layer."""
    network = loader.load_network("gemma3_text", 2, 4)
    parts = [loader.load_network("gemma3_text", 0, 2), network]
    expected = run_chain(parts)
    monkeypatch.setattr(network, "_aliases", list(range(LAYERS)))
    found = run_chain(parts)
    assert is_equal(found[0], expected[0])
    assert not is_equal(found[1], expected[1])


@pytest.mark.parametrize("kind", KINDS)
def test_stage_holds_its_slice_of_the_whole(loader: Loader, kind: str) -> None:
    whole, _ = loader.load_weights(kind, 0, LAYERS)
    for start, stop in [*pairwise(range(LAYERS + 1)), (0, 3), (1, 4)]:
        part, num_bytes = loader.load_weights(kind, start, stop)
        inside = {name for name in whole if (number := find_layer(name)) is not None and start <= number < stop}
        assert {name for name in part if find_layer(name) is not None} == inside
        assert all(is_equal(array, whole[name]) for name, array in part.items())
        assert num_bytes == sum(array.nbytes for array in part.values())


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [("llama", {"embed_tokens"}, {"norm", "lm_head"}), ("qwen3", {"embed_tokens"}, {"norm", "embed_tokens"})],
)
def test_only_the_ends_hold_embedding_and_head(loader: Loader, kind: str, first: set[str], last: set[str]) -> None:
    def list_ends(start: int, stop: int) -> set[str]:
        part, _ = loader.load_weights(kind, start, stop)
        return {name.split(".")[-2] for name in part if find_layer(name) is None}

    assert (list_ends(0, 1), list_ends(1, 3), list_ends(3, 4)) == (first, set(), last)


def test_stage_says_what_it_takes_and_gives(loader: Loader) -> None:
    folder, hidden = loader.find_folder("qwen3"), (TensorSpec(32, "float32"),)
    sides = {(0, 1): ((), hidden), (1, 3): (hidden, hidden), (3, 4): (hidden, ())}
    for (start, stop), expected in sides.items():
        info = MlxBackend().open_stage(StagePlan(model=folder, layers=LayerRange(start, stop))).info
        assert (info.layers, info.num_layers, info.vocab_size) == (LayerRange(start, stop), LAYERS, 97)
        assert (info.takes, info.gives) == expected
        assert info.weight_bytes == loader.load_weights("qwen3", start, stop)[1]


def test_entries_of_other_layers_stay_empty(loader: Loader) -> None:
    network = loader.load_network("qwen3_next", 1, 3)
    held = network.make_cache()
    assert network.list_entries() == [1, 2]
    network.run(mx.array([[4, 5]], dtype=mx.int32), mx.ones((1, 2, 32)), held, None)
    filled = [any(isinstance(leaf, mx.array) for _, leaf in flatten_tree(entry.state)) for entry in held]
    assert filled == [False, True, True, False]


BAILING = {
    "model_type": "bailing_moe_linear",
    "first_k_dense_replace": 1,
    "group_norm_size": 1,
    "layer_group_size": 2,
    "max_position_embeddings": 100,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "partial_rotary_factor": 1.0,
    "routed_scaling_factor": 1.0,
    "score_function": "sigmoid",
    "topk_group": 1,
    "use_bias": False,
    "use_qkv_bias": False,
}


@pytest.mark.parametrize(
    ("config", "words"), [(RWKV7, "layer 2 reads a further output of layer 1"), (AFM7, "not in one list")]
)
def test_layers_that_share_more_than_hidden_states_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words) as caught:
        slice_model(make_model(config), LayerRange(0, 2))
    assert "serve it whole" in caught.value.hint
    whole = Network(keep_model(make_model(config)))
    assert whole.run_tokens([1, 2, 3], whole.make_cache(), [2]).shape == (1, 97)


def test_layers_that_need_positions_are_refused_without_them() -> None:
    """Its linear layers are told the position, which only a cache of keys and values knows."""
    with pytest.raises(Unsupported, match="layer 0 must be in one stage with a layer that has a KVCache"):
        slice_model(make_model(BAILING), LayerRange(0, 1))
    assert slice_model(make_model(BAILING), LayerRange(0, 2)).layers == LayerRange(0, 2)


def damage_pass(layers: list[Any], hidden: mx.array, cache: list[Any]) -> mx.array:
    for layer, entry in zip(layers, cache, strict=True):
        hidden = layer(hidden, "causal", entry) * 0.5
    return hidden


def damage_share(layers: list[Any], hidden: mx.array, cache: list[Any]) -> mx.array:
    for layer in layers:
        hidden = layer(hidden, "causal", cache[0])
    return hidden


def damage_repeat(layers: list[Any], hidden: mx.array, cache: list[Any]) -> mx.array:
    for layer, entry in zip([*layers, *layers], [*cache, *cache], strict=True):
        hidden = layer(hidden, "causal", entry)
    return hidden


def damage_extra(layers: list[Any], hidden: mx.array, cache: list[Any]) -> mx.array:
    first = None
    for layer, entry in zip(layers, cache, strict=True):
        hidden = layer(hidden, None if first is None else first[:, :, :1] > 0, entry)
        first = hidden if first is None else first
    return hidden


def damage_end(layers: list[Any], hidden: mx.array, cache: list[Any]) -> mx.array:
    first = hidden
    for layer, entry in zip(layers, cache, strict=True):
        hidden = layer(hidden, "causal", entry)
    return hidden + first


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (damage_pass, "layer 1 does not take the hidden states"),
        (damage_share, "share a cache"),
        (damage_repeat, "4 layers and runs 8"),
        (damage_extra, "more than hidden states"),
        (damage_end, "or the modules after them"),
    ],
)
def test_what_a_stage_could_not_know_is_found(
    run: Callable[..., mx.array], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Llama whose layers are put together in a way no stage could repeat."""
    model = make_model({"model_type": "llama"})
    body = model.model

    def call(self: Any, inputs: mx.array, cache: list[Any], *_: object) -> mx.array:
        hidden: mx.array = self.norm(run(self.layers, self.embed_tokens(inputs), cache))
        return hidden

    monkeypatch.setattr(type(body), "__call__", call)
    with pytest.raises(Unsupported, match=words):
        slice_model(model, LayerRange(0, 2))
    assert all(type(layer).__module__ == type(body).__module__ for layer in body.layers)
