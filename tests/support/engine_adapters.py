"""Holds engines that read PEFT's format themselves to the answers of merged weights."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from parallax_adapters.store import AdapterStore
from parallax_core.api import InvalidRequest, Request, RequestId, Sampling
from parallax_core.testing.shared_engine import SharedEngine
from tests.support.tiny_adapters import list_sizes, make_matrices, merge, write_adapter

PROMPT = (5, 9, 2, 11, 3)
TARGETS = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
LENGTH = 12
Reference = Callable[[Path], list[int]]
"""Returns the greedy tokens of a model after `PROMPT`."""


def make_adapter(model: Path, folder: Path, seed: int, rank: int = 4) -> Path:
    matrices = make_matrices(list_sizes(model, ("_proj",)), rank, seed, std=0.3)
    return write_adapter(folder, matrices, r=rank, target_modules=TARGETS)


def make_uneven(model: Path, folder: Path) -> Path:
    """Make an adapter with several ranks and scales, by an expression that takes Python's matcher any time."""
    sizes = list_sizes(model, ("_proj",))
    matrices = make_matrices(sizes, 4, seed=7, std=0.3)
    matrices |= make_matrices({name: size for name, size in sizes.items() if "q_proj" in name}, 2, seed=7, std=0.3)
    pattern = {"(.*)*q_proj": 2}
    return write_adapter(folder, matrices, rank_pattern=pattern, use_rslora=True, target_modules="all-linear")


def ask(shared: SharedEngine, *keys: str) -> list[list[int]]:
    """Return the tokens of requests with these adapters, asked at the same time."""

    async def read(key: str) -> list[int]:
        request = Request(
            id=RequestId(os.urandom(8).hex()),
            prompt=PROMPT,
            max_tokens=LENGTH,
            sampling=Sampling(temperature=0),
            adapter=key,
        )
        deltas = [delta async for delta in shared.engine.submit(request)]
        finish = deltas[-1].finish
        assert finish is not None
        assert finish.reason == "length", finish
        return [token for delta in deltas for token in delta.tokens]

    async def read_all() -> list[list[int]]:
        return list(await asyncio.gather(*map(read, keys)))

    return shared.run(read_all())


def generate_reference(folder: Path) -> list[int]:
    """Return the greedy tokens of a model in transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    with torch.no_grad():
        found = model.generate(torch.tensor([PROMPT]), max_new_tokens=LENGTH, do_sample=False, eos_token_id=None)
    return [int(token) for token in found[0, len(PROMPT) :]]


def check_merged(shared: SharedEngine, model: Path, folder: Path) -> None:
    """Check that tokens are those of merged weights, alone and beside other adapters, more than fit into a batch."""
    folders = [*(make_adapter(model, folder / f"{seed}", seed) for seed in range(2)), make_uneven(model, folder / "2")]
    keys = [AdapterStore().add(each) for each in folders]
    alone = [ask(shared, key)[0] for key in ("", *keys)]
    merged = [model, *(merge(model, each, folder / f"merged-{each.name}") for each in folders)]
    assert alone == [generate_reference(each) for each in merged]
    assert ask(shared, "", *keys, keys[0]) == [*alone, alone[1]]


def check_refusals(shared: SharedEngine, model: Path, folder: Path) -> None:
    """Check that adapters that do not fit are refused by name, for a largest rank of 8, and end nothing."""
    wanted, store = ask(shared, ""), AdapterStore()
    sizes = list_sizes(model, ("up_proj",))
    smaller = {name: (out, into - 1) for name, (out, into) in sizes.items()}
    refused = {
        store.add(make_adapter(model, folder / "high", 0, 16)): "the rank 16, and this engine takes at most 8",
        store.add(write_adapter(folder / "small", make_matrices(smaller))): "has 64 inputs and 48 outputs",
        store.add(write_adapter(folder / "x", make_matrices({"layers.0.x": (4, 4)}))): "which this model does not",
        "0" * 32: "is not on this machine",
    }
    for key, reason in refused.items():
        with pytest.raises(InvalidRequest, match=reason):
            ask(shared, key)
    assert ask(shared, "") == wanted
