"""The stacks of adapters: written by any thread, in place, and read meanwhile."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from parallax_adapters.peft_files import LowRank
from parallax_backend_mlx.adapter_stacks import (
    FIRST_PLACES,
    AdapterStacks,
    ModuleShape,
    PlacedAdapter,
    encode,
    find_module,
)
from parallax_backend_mlx.runtime import mx
from parallax_core.api import Tensor

SHAPES = {"layers.0.q_proj": ModuleShape(5, 7), "layers.0.experts.*.up_proj": ModuleShape(3, 4, 2)}


def make_stacks(dtype: mx.Dtype = mx.float32) -> AdapterStacks:
    stacks = AdapterStacks(dtype)
    stacks.shapes |= SHAPES
    return stacks


def draw(inputs: int, outputs: int, rank: int, seed: int) -> tuple[LowRank, np.ndarray]:
    random = np.random.default_rng(seed)
    a, b = (random.normal(size=shape).astype(np.float32) for shape in ((rank, inputs), (outputs, rank)))
    parts = [Tensor("float32", each.shape, each.data.cast("B")) for each in (a, b)]
    return LowRank(parts[0], parts[1], 2.0), 2 * b @ a


def read(stacks: AdapterStacks, name: str, placed: PlacedAdapter, expert: int = 0) -> np.ndarray:
    """Return what an adapter adds to a matrix."""
    a, b = stacks.by_module[name].pair
    number = placed.place * stacks.shapes[name].experts + expert
    return np.array((a[number].astype(mx.float32) @ b[number].astype(mx.float32)).T)


def test_adapters_keep_their_matrices_while_others_come_and_go() -> None:
    stacks, kept = make_stacks(), []
    for seed in range(2 * FIRST_PLACES):
        low, wanted = draw(5, 7, 1 + seed % 3, seed)
        kept.append((stacks.place({"layers.0.q_proj": low}), wanted))
        if seed % 3 == 2:
            kept.pop(0)
        for placed, delta in kept:
            np.testing.assert_allclose(read(stacks, "layers.0.q_proj", placed), delta, rtol=1e-5, atol=1e-5)
    assert len({placed.place for placed, _ in kept}) == len(kept)
    assert 0 not in {placed.place for placed, _ in kept}
    assert not np.array(stacks.by_module["layers.0.q_proj"].pair[0][0]).any()


def test_place_of_an_adapter_that_is_gone_has_nothing_of_it() -> None:
    stacks = make_stacks()
    other = stacks.place({"layers.0.q_proj": draw(5, 7, 4, 0)[0]})
    first = stacks.place({"layers.0.q_proj": draw(5, 7, 4, 1)[0], "layers.0.experts.1.up_proj": draw(3, 4, 2, 2)[0]})
    place, made = first.place, stacks.made
    del first
    gc.collect()
    low, wanted = draw(3, 4, 1, 3)
    second = stacks.place({"layers.0.experts.0.up_proj": low})
    assert (second.place, stacks.made) == (place, made), "a place is written anew, and no stack is made"
    assert not read(stacks, "layers.0.q_proj", second).any()
    assert not read(stacks, "layers.0.experts.*.up_proj", second, 1).any()
    np.testing.assert_allclose(read(stacks, "layers.0.experts.*.up_proj", second), wanted, rtol=1e-5)
    assert read(stacks, "layers.0.q_proj", other).any()


def test_memory_comes_back_once_nothing_is_placed() -> None:
    stacks = make_stacks()
    many = [stacks.place({"layers.0.q_proj": draw(5, 7, 4, seed)[0]}) for seed in range(9)]
    assert 10 <= stacks.by_module["layers.0.q_proj"].places <= 15
    many.clear()
    gc.collect()
    one = stacks.place({"layers.0.experts.0.up_proj": draw(3, 4, 1, 0)[0]})
    assert one.place
    found = {name: each.places for name, each in stacks.by_module.items()}
    assert found == {"layers.0.experts.*.up_proj": FIRST_PLACES}


def test_room_that_is_kept_is_made_at_once() -> None:
    stacks = make_stacks()
    many = [stacks.place({"layers.0.q_proj": draw(5, 7, 4, seed)[0]}, most=10) for seed in range(9)]
    assert (len(many), stacks.made) == (9, 1)


def test_adapters_are_written_while_others_are_multiplied() -> None:
    stacks = make_stacks()
    low, wanted = draw(5, 7, 3, 0)
    used = stacks.place({"layers.0.q_proj": low})
    others: list[PlacedAdapter] = []

    def load() -> None:
        others.extend(stacks.place({"layers.0.q_proj": draw(5, 7, 1 + seed % 5, seed)[0]}) for seed in range(1, 40))

    thread = threading.Thread(target=load)
    thread.start()
    looks = 0
    while thread.is_alive() or looks < 10:
        np.testing.assert_allclose(read(stacks, "layers.0.q_proj", used), wanted, rtol=1e-5, atol=1e-5)
        looks += 1
    thread.join()
    assert len({used.place, *(each.place for each in others)}) == 40


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_numbers_are_rounded_as_mlx_rounds_them(dtype: mx.Dtype) -> None:
    ties = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 0]
    values = np.concatenate([np.random.default_rng(0).normal(size=999), ties]).astype(np.float32)
    wanted = np.array(mx.array(values).astype(dtype).view(mx.uint16))
    assert np.array_equal(encode(values, dtype), wanted)
    stacks = make_stacks(dtype)
    low, delta = draw(5, 7, 3, 0)
    placed = stacks.place({"layers.0.q_proj": low})
    np.testing.assert_allclose(read(stacks, "layers.0.q_proj", placed), delta, rtol=0.1, atol=0.1)


def test_experts_of_a_module_have_one_stack() -> None:
    assert find_module("layers.0.experts.17.up_proj") == ("layers.0.experts.*.up_proj", 17)
    assert find_module("layers.0.self_attn.q_proj") == ("layers.0.self_attn.q_proj", 0)
