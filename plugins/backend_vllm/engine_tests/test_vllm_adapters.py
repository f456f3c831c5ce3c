"""LoRA adapters of the real vLLM: chosen by request, as merged, and refused without harm."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parallax_adapters.store import AdapterStore
from parallax_core.api import InvalidRequest, Request, RequestId, Sampling
from parallax_core.testing.shared_engine import SharedEngine
from plugins.backend_vllm.engine_tests.conftest import make_engine
from tests.support.tiny_adapters import list_sizes, make_matrices, merge, write_adapter

PROMPT = (5, 9, 2, 11, 3)
TARGETS = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
LENGTH = 12


@pytest.fixture(scope="module")
def model(find_model: Callable[[str], Path]) -> Path:
    return find_model("llama")


@pytest.fixture(scope="module")
def adapted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARALLAX_HOME", str(tmp_path_factory.mktemp("home")))
        engine = SharedEngine(lambda: make_engine(model, max_loras=2, max_lora_rank=8, max_model_len=128))
        yield engine
        engine.close()


def make_adapter(model: Path, folder: Path, seed: int, rank: int = 4) -> Path:
    matrices = make_matrices(list_sizes(model, ("_proj",)), rank, seed, std=0.3)
    return write_adapter(folder, matrices, r=rank, target_modules=TARGETS)


def ask(shared: SharedEngine, *keys: str) -> list[Any]:
    """Return the tokens of requests with these adapters, asked at the same time, or what a stream ended with."""

    async def read(key: str) -> Any:
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
        return [token for delta in deltas for token in delta.tokens] if finish.reason == "length" else finish.message

    async def read_all() -> list[Any]:
        return list(await asyncio.gather(*map(read, keys)))

    return shared.run(read_all())


def test_tokens_are_those_of_merged_weights_beside_other_adapters(
    adapted: SharedEngine, model: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    folders = [make_adapter(model, tmp_path / f"{seed}", seed) for seed in range(3)]
    keys = [AdapterStore().add(folder) for folder in folders]
    alone = [ask(adapted, key)[0] for key in ("", *keys)]
    assert ask(adapted, "", *keys, keys[0]) == [*alone, alone[1]]  # three adapters, of which two fit into a batch
    for number, folder in enumerate([model, *(merge(model, each, tmp_path / f"m{each.name}") for each in folders)]):
        reference = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
        import torch

        with torch.no_grad():
            found = reference.generate(
                torch.tensor([PROMPT]), max_new_tokens=LENGTH, do_sample=False, eos_token_id=None
            )
        assert found[0, len(PROMPT) :].tolist() == alone[number]


def test_adapters_that_do_not_fit_are_refused_and_end_nothing(
    adapted: SharedEngine, model: Path, tmp_path: Path
) -> None:
    wanted = ask(adapted, "")
    sizes = list_sizes(model, ("up_proj",))
    smaller = {name: (out, into - 1) for name, (out, into) in sizes.items()}
    store = AdapterStore()
    refused = {
        store.add(make_adapter(model, tmp_path / "high", 0, 16)): "the rank 16, and this engine takes at most 8",
        store.add(write_adapter(tmp_path / "small", make_matrices(smaller))): "has 64 inputs and 48 outputs",
        store.add(write_adapter(tmp_path / "x", make_matrices({"layers.0.x": (4, 4)}))): "which this model does not",
        "0" * 32: "is not on this machine",
    }
    for key, reason in refused.items():
        with pytest.raises(InvalidRequest, match=reason):
            ask(adapted, key)
    assert ask(adapted, "") == wanted
