"""LoRA adapters on stages: equal to merged weights, alone and beside others, whole and split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from parallax_adapters.store import AdapterStore
from parallax_adapters.testing import AdapterConformance
from parallax_backend_torch.kernels.adapters import AdapterStep, PackedAdapter, pack_pair
from parallax_backend_torch.kernels.library import Mode, choose_kernels, find_library
from parallax_core.api import BackendFailed, Draw, Drop, Edit, Fork, Open, Row, SeqId, Stage
from tests.support.adapter_stages import (
    ALL,
    CLOSE,
    PROMPT,
    differ,
    generate,
    make_adapter,
    open_all,
    open_chain,
    run,
)
from tests.support.checkpoints import save_family
from tests.support.tiny_adapters import make_matrices, merge, write_adapter
from tests.support.tiny_experts import make_experts, merge_experts, split_experts
from tests.support.torch_backend import TorchBackend


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    yield
    choose_kernels("auto")


opened = partial(open_chain, TorchBackend())
TIGHT = 1e-4
"""Above the differences of log-probabilities by rounding in float32 between two ways to compute the same."""


@pytest.mark.parametrize("options", [{}, {"kernels": "off"}])
@pytest.mark.parametrize(
    ("kind", "endings"),
    [
        ("llama", ALL),
        ("qwen2", ("q_proj", "v_proj")),
        ("qwen3", ("k_proj", "up_proj", "o_proj")),
        ("phi3", ALL),
        ("gemma3_text", ALL),
    ],
)
def test_tokens_are_those_of_merged_weights(
    tmp_path: Path, kind: str, endings: Sequence[str], options: dict[str, Any]
) -> None:
    save_family(kind, model := tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "adapter", endings)
    with opened(merge(model, adapter, tmp_path / "merged"), **options) as stages:
        wanted = generate(stages, {1: ""})[1]
    key = AdapterStore().add(adapter)
    with opened(model, **options) as stages:
        assert "adapters" in stages[0].info.capabilities
        plain = generate(stages, {1: ""})[1]
        assert differ(generate(stages, {2: key})[2], wanted) < CLOSE < differ(plain, wanted)
        assert generate(stages, {3: ""})[3] == plain


@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize(("kind", "cuts"), [("qwen3_moe", ()), ("qwen3_moe", (1, 3)), ("mixtral", (2,))])
def test_experts_get_what_their_own_tokens_need(tmp_path: Path, kind: str, cuts: tuple[int, ...], kernels: str) -> None:
    save_family(kind, model := tmp_path / "model")
    adapter = make_experts(model, tmp_path / "adapter")
    with opened(merge_experts(model, adapter, tmp_path / "merged"), kernels=kernels) as stages:
        wanted = generate(stages, {1: ""})[1]
    keys = {
        1: AdapterStore().add(adapter),
        2: "",
        3: AdapterStore().add(make_experts(model, tmp_path / "half", seed=1, stacks=["down_proj"], others=False)),
        4: AdapterStore().add(split_experts(adapter, model, tmp_path / "split")),
        5: AdapterStore().add(make_adapter(model, tmp_path / "other", ("q_proj",), seed=2)),
    }
    with opened(model, *cuts, kernels=kernels) as stages:
        alone = {seq: generate(stages, {seq: key})[seq] for seq, key in keys.items()}
        mixed = generate(stages, keys)
    assert differ(alone[1], wanted) < TIGHT
    assert all(differ(mixed[seq], alone[seq]) < CLOSE for seq in keys)
    assert differ(alone[4], alone[1]) < TIGHT
    assert min(differ(alone[1], alone[2]), differ(alone[3], alone[2]), differ(alone[3], alone[1])) > CLOSE


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_family("llama", tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("cuts", [(), (2,), (1, 3)])
def test_tokens_are_the_same_with_seven_other_adapters(model: Path, tmp_path: Path, cuts: tuple[int, ...]) -> None:
    kinds = [(ALL, 4), (("q_proj",), 3), (("down_proj", "k_proj"), 20), (ALL, 1)] * 2
    keys = {
        seq: AdapterStore().add(make_adapter(model, tmp_path / f"{seq}", endings, rank, seed=seq))
        for seq, (endings, rank) in enumerate(kinds)
    }
    with opened(model, *cuts) as stages:
        alone = [generate(stages, {seq: key})[seq] for seq, key in keys.items()]
        plain = generate(stages, {8: ""})[8]
        mixed = generate(stages, {8: "", **keys, 9: keys[0]})
    assert all(differ(mixed[seq], alone[seq]) < CLOSE for seq in keys)
    assert differ(mixed[8], plain) < CLOSE
    assert mixed[9] == mixed[0]
    assert len({tuple(tokens) for tokens in mixed.values()}) == 9


def test_same_rows_with_adapters_may_come_beside_more_and_fewer_others(model: Path, tmp_path: Path) -> None:
    key = AdapterStore().add(make_adapter(model, tmp_path / "adapter"))
    with opened(model) as stages:
        wanted = generate(stages, {1: key})[1]
        for others in (1, 3, 0, 2):
            mixed = generate(stages, {1: key, **dict.fromkeys(range(2, 2 + others), "")})
            assert differ(mixed[1], wanted) < CLOSE


def test_split_stages_load_their_layers_part_only(model: Path, tmp_path: Path) -> None:
    key = AdapterStore().add(make_adapter(model, tmp_path / "adapter"))
    with opened(model) as whole, opened(model, 1, 3) as stages:
        wanted = generate(whole, {1: key})[1]
        assert differ(generate(stages, {1: key})[1], wanted) < CLOSE
        parts = [stage.adapters.num_bytes for stage in (*whole, *stages)]  # type: ignore[attr-defined]
    assert parts[0] == sum(parts[1:])
    assert parts[2] == 2 * parts[1]


def test_fork_goes_on_with_the_adapter(model: Path, tmp_path: Path) -> None:
    key = AdapterStore().add(make_adapter(model, tmp_path / "adapter"))
    with opened(model) as stages:
        wanted = generate(stages, {1: key}, 2)[1]
        open_all(stages, {2: key})
        run(stages, [Row(SeqId(2), 0, PROMPT)])
        stages[0].edit([Fork(SeqId(2), SeqId(3), len(PROMPT) - 1), Drop(SeqId(2))])
        found = run(stages, [Row(SeqId(3), len(PROMPT) - 1, PROMPT[-1:], (Draw(0, top=0),))])
    assert differ(found, wanted[:1]) < CLOSE


def test_chunked_prompt_gets_the_same(model: Path, tmp_path: Path) -> None:
    key, prompt = AdapterStore().add(make_adapter(model, tmp_path / "adapter")), tuple(range(5, 45))
    with opened(model) as stages:
        open_all(stages, {1: key, 2: key})
        wanted = run(stages, [Row(SeqId(1), 0, prompt, (Draw(39, top=0),))])
        run(stages, [Row(SeqId(2), 0, prompt[:17])])
        assert differ(run(stages, [Row(SeqId(2), 17, prompt[17:], (Draw(22, top=0),))]), wanted) < CLOSE


def test_adapter_that_is_missing_ends_its_sequences_alone(model: Path, tmp_path: Path) -> None:
    key = AdapterStore().add(make_adapter(model, tmp_path / "adapter"))
    AdapterStore().remove(key)
    with opened(model) as stages:
        open_all(stages, {1: "", 2: key, 3: ""})
        rows = [Row(SeqId(seq), 0, PROMPT, (Draw(4, top=0),)) for seq in (1, 2, 3)]
        with pytest.raises(BackendFailed, match=f"the adapter {key} cannot be used: .* not on this machine") as caught:
            run(stages, rows)
        assert caught.value.sequences == (2,)
        assert len(run(stages, [rows[0], rows[2]])) == 2
        AdapterStore().add(tmp_path / "adapter")
        open_all(stages, {4: key})
        assert run(stages, [Row(SeqId(4), 0, PROMPT, (Draw(4, top=0),))])


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"layers.1.self_attn.q_proj": (33, 32)}, "q_proj has 32 inputs and 32 outputs in this model"),
        ({"layers.1.mlp.down_proj": (32, 47)}, "down_proj has 48 inputs"),
        ({"layers.1.mlp.experts.0.up_proj": (48, 32)}, "experts.0.up_proj, which takes no adapters"),
        ({"layers.1.self_attn.qkv_proj": (65, 32)}, "qkv_proj has 65 outputs, and its parts have"),
    ],
)
def test_adapter_of_another_model_is_refused_with_the_module(
    model: Path, tmp_path: Path, sizes: dict[str, tuple[int, int]], reason: str
) -> None:
    key = AdapterStore().add(write_adapter(tmp_path / "adapter", make_matrices(sizes)))
    with opened(model, 1) as stages:
        open_all(stages[1:], {1: key})
        hidden = stages[0].info.gives[0].width
        assert hidden == 32
        open_all(stages[:1], {1: key})
        with pytest.raises(BackendFailed, match=reason):
            run(stages, [Row(SeqId(1), 0, PROMPT, (Draw(4, top=0),))])


def test_memory_of_unloaded_adapters_comes_back(model: Path, tmp_path: Path) -> None:
    store = AdapterStore()
    one, other = (store.add(make_adapter(model, tmp_path / f"{seed}", seed=seed)) for seed in (1, 2))
    with opened(model) as stages:
        table = stages[0].adapters  # type: ignore[attr-defined]
        generate(stages, {1: one}, 1)
        size = table.num_bytes
        open_all(stages, {2: one})
        store.remove(one)
        generate(stages, {3: other}, 1)
        assert table.num_bytes == 2 * size  # one is in use
        assert run(stages, [Row(SeqId(2), 0, PROMPT, (Draw(4, top=0),))])
        stages[0].edit([Drop(SeqId(2))])
        store.remove(other)
        third = store.add(make_adapter(model, tmp_path / "3", seed=3))
        generate(stages, {4: third}, 1)
        assert table.num_bytes == size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 3, 16, 41])
def test_products_of_the_library_are_those_of_torch(isa: Mode, dtype: torch.dtype, rank: int) -> None:
    assert find_library(), isa
    torch.manual_seed(rank)
    x, out = torch.randn(37, 50), torch.randn(37, 160)
    groups, wanted = [], out.clone()
    for places, column, size in (([0, 36], 0, 24), ([*range(1, 36, 3)], 59, 101), ([2, 5, 6, *range(8, 36, 3)], 0, 31)):
        a, b = torch.randn(rank, 50).to(dtype), torch.randn(size, rank).to(dtype)
        wanted[places, column : column + size] += 0.5 * (x[places] @ a.float().T) @ b.float().T
        groups.append((PackedAdapter([(), [(column, pack_pair(a, b, 0.5))]]), places))
    given = out.clone()
    AdapterStep(groups).add(0, x, out)
    assert out.equal(given)
    AdapterStep(groups).add(1, x, out)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)
    for adapter, places in groups:
        for place in places:
            alone = given[place : place + 1].clone()
            AdapterStep([(adapter, [0])]).add(1, x[place : place + 1], alone)
            assert alone.equal(out[place : place + 1]), "a row has the same bits beside any others"


class TestAdapters(AdapterConformance):
    @pytest.fixture(autouse=True)
    def _files(self, model: Path, tmp_path: Path) -> None:
        self.model, self.folder = model, tmp_path

    def open_stages(self) -> AbstractContextManager[list[Stage]]:
        return opened(self.model, 2)

    def add_adapters(self) -> list[str]:
        return [AdapterStore().add(make_adapter(self.model, self.folder / f"{seed}", seed=seed)) for seed in (1, 2)]


class Faulty:
    """A stage that opens sequences with another adapter than theirs."""

    def __init__(self, stage: Stage, choose: Callable[[str, list[str]], str]) -> None:
        self._stage, self._choose, self._seen = stage, choose, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def edit(self, edits: Sequence[Edit]) -> None:
        for edit in edits:
            if isinstance(edit, Open):
                key = self._choose(edit.spec.adapter, self._seen)
                self._seen += [edit.spec.adapter] if edit.spec.adapter else []
                edit = replace(edit, spec=replace(edit.spec, adapter=key))  # noqa: PLW2901 -- as the fault has it
            self._stage.edit([edit])


FAULTS: dict[str, tuple[Callable[[str, list[str]], str], str]] = {
    "an adapter is ignored": (lambda _, __: "", "each_adapter_changes_the_answers"),
    "rows have the adapter of others": (
        lambda key, seen: seen[-1] if seen and key else key,
        "rows_of_a_step_have_their_own_adapters_only",
    ),
    "an adapter is left": (lambda key, seen: key or (seen or [""])[-1], "nothing_of_an_adapter_is_left"),
    "a missing adapter is passed over": (lambda key, _: key.strip("0"), "adapter_that_is_missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_kit_finds_a_fault(model: Path, tmp_path: Path, fault: str) -> None:
    choose, name = FAULTS[fault]

    class Kit(AdapterConformance):
        @contextmanager
        def open_stages(self) -> Iterator[list[Any]]:
            with opened(model) as stages:
                yield [Faulty(stage, choose) for stage in stages]

        def add_adapters(self) -> list[str]:
            return [AdapterStore().add(make_adapter(model, tmp_path / f"{seed}", seed=seed)) for seed in (1, 2)]

    test = next(getattr(Kit(), each) for each in dir(Kit) if each.startswith(f"test_{name}"))
    with pytest.raises(AssertionError):
        test()
