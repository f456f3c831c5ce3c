"""LoRA adapters on MLX: equal to merged weights, alone and beside others, whole, split, and beside another backend."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from parallax_adapters.store import AdapterStore
from parallax_adapters.testing import AdapterConformance
from parallax_core.api import BackendFailed, Draw, Drop, Row, SeqId, Stage
from tests.support.adapter_stages import ALL, CLOSE, PROMPT, differ, generate, make_adapter, open_all, open_chain, run
from tests.support.checkpoints import save_family
from tests.support.mixed_backend import MixedBackend
from tests.support.mlx_backend import BroughtMlx
from tests.support.tiny_adapters import make_matrices, merge, write_adapter
from tests.support.tiny_experts import make_experts, merge_experts, split_experts
from tests.support.torch_backend import TorchBackend

MLX = BroughtMlx()
TIGHT = 1e-4
"""Above the differences of log-probabilities by rounding in float32 between two ways to compute the same."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_family("llama", tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("kind", "endings"),
    [("llama", ALL), ("qwen2", ("q_proj", "v_proj")), ("qwen3", ("k_proj", "up_proj", "o_proj")), ("gemma3_text", ALL)],
)
def test_tokens_are_those_of_merged_weights(tmp_path: Path, kind: str, endings: Sequence[str]) -> None:
    save_family(kind, model := tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "adapter", endings)
    with open_chain(MLX, merge(model, adapter, tmp_path / "merged")) as stages:
        wanted = generate(stages, {1: ""})[1]
    key = AdapterStore().add(adapter)
    with open_chain(MLX, model) as stages:
        assert "adapters" in stages[0].info.capabilities
        plain = generate(stages, {1: ""})[1]
        assert differ(generate(stages, {2: key})[2], wanted) < CLOSE < differ(plain, wanted)
        assert generate(stages, {3: ""})[3] == plain


@pytest.mark.parametrize(("kind", "cuts"), [("qwen3_moe", (1, 3)), ("mixtral", ())])
def test_experts_get_what_their_own_tokens_need(tmp_path: Path, kind: str, cuts: tuple[int, ...]) -> None:
    save_family(kind, model := tmp_path / "model")
    adapter = make_experts(model, tmp_path / "adapter")
    with open_chain(MLX, merge_experts(model, adapter, tmp_path / "merged")) as stages:
        wanted = generate(stages, {1: ""})[1]
    keys = {
        1: AdapterStore().add(adapter),
        2: "",
        3: AdapterStore().add(make_experts(model, tmp_path / "half", seed=1, stacks=["down_proj"], others=False)),
        4: AdapterStore().add(split_experts(adapter, model, tmp_path / "split")),
    }
    prompt = tuple(range(5, 45))  # of so many tokens that mlx-lm sorts them by their experts
    with open_chain(MLX, model, *cuts) as stages:
        alone = {seq: generate(stages, {seq: key})[seq] for seq, key in keys.items()}
        mixed = generate(stages, keys)
        open_all(stages, {7: keys[1], 8: keys[1]})
        long = run(stages, [Row(SeqId(7), 0, prompt, (Draw(39, top=0),))])
        run(stages, [Row(SeqId(8), 0, prompt[:17])])
        assert differ(run(stages, [Row(SeqId(8), 17, prompt[17:], (Draw(22, top=0),))]), long) < CLOSE
    assert differ(alone[1], wanted) < TIGHT
    assert all(differ(mixed[seq], alone[seq]) < CLOSE for seq in keys)
    assert differ(alone[4], alone[1]) < TIGHT
    assert min(differ(alone[1], alone[2]), differ(alone[3], alone[2]), differ(alone[3], alone[1])) > CLOSE


def test_adapters_change_answers_in_bfloat16(model: Path, tmp_path: Path) -> None:
    key = AdapterStore().add(make_adapter(model, tmp_path / "adapter"))
    with open_chain(MLX, model, dtype="bfloat16") as stages:
        plain = generate(stages, {1: ""})[1]
        found = generate(stages, {2: key, 3: ""})
    assert found[3] == plain
    assert differ(found[2], plain) > CLOSE


@pytest.mark.parametrize("cuts", [(), (1, 3)])
def test_tokens_are_the_same_with_seven_other_adapters(model: Path, tmp_path: Path, cuts: tuple[int, ...]) -> None:
    kinds = [(ALL, 4), (("q_proj",), 3), (("down_proj", "k_proj"), 20), (ALL, 1)] * 2
    keys = {
        seq: AdapterStore().add(make_adapter(model, tmp_path / f"{seq}", endings, rank, seed=seq))
        for seq, (endings, rank) in enumerate(kinds)
    }
    with open_chain(MLX, model, *cuts) as stages:
        alone = [generate(stages, {seq: key})[seq] for seq, key in keys.items()]
        plain = generate(stages, {8: ""})[8]
        mixed = generate(stages, {8: "", **keys, 9: keys[0]})
    assert all(differ(mixed[seq], alone[seq]) < CLOSE for seq in keys)
    assert differ(mixed[8], plain) < CLOSE
    assert differ(mixed[9], mixed[0]) < CLOSE
    assert len({tuple(token for token, _ in tokens) for tokens in mixed.values()}) > 4


@pytest.mark.parametrize("backends", [(TorchBackend(), MLX), (MLX, TorchBackend())])
def test_stages_of_two_backends_give_the_tokens_of_merged_weights(
    model: Path, tmp_path: Path, backends: Sequence[TorchBackend | BroughtMlx]
) -> None:
    adapter = make_adapter(model, tmp_path / "adapter")
    with open_chain(MixedBackend(backends), merge(model, adapter, tmp_path / "merged")) as stages:
        wanted = generate(stages, {1: ""})[1]
    keys = {
        1: AdapterStore().add(adapter),
        2: AdapterStore().add(make_adapter(model, tmp_path / "other", seed=1)),
        3: "",
    }
    with open_chain(MixedBackend(backends), model, 1, 3) as stages:
        found = generate(stages, keys)
        sizes = [set(stage.adapters.kept.sizes) for stage in stages]  # type: ignore[attr-defined]
    assert differ(found[1], wanted) < CLOSE < min(differ(found[2], wanted), differ(found[3], wanted))
    assert [{int(name.split(".")[1]) for name in each} for each in sizes] == [{0}, {1, 2}, {3}]


def test_adapter_that_is_missing_or_of_another_model_ends_its_sequences_alone(model: Path, tmp_path: Path) -> None:
    key = AdapterStore().add(write_adapter(tmp_path / "one", make_matrices({"layers.1.self_attn.q_proj": (33, 32)})))
    with open_chain(MLX, model) as stages:
        open_all(stages, {1: "", 2: key, 3: "0" * 32})
        rows = [Row(SeqId(seq), 0, PROMPT, (Draw(4, top=0),)) for seq in (1, 2, 3)]
        for row, reason in ((rows[1], "q_proj has 32 inputs and 32 outputs"), (rows[2], "not on this machine")):
            with pytest.raises(BackendFailed, match=reason) as caught:
                run(stages, [rows[0], row])
            assert caught.value.sequences == (row.seq,)
        assert len(run(stages, rows[:1])) == 1


def test_memory_of_unloaded_adapters_comes_back(model: Path, tmp_path: Path) -> None:
    store = AdapterStore()
    one, other = (store.add(make_adapter(model, tmp_path / f"{seed}", seed=seed)) for seed in (1, 2))
    with open_chain(MLX, model) as stages:
        kept = stages[0].adapters.kept  # type: ignore[attr-defined]
        open_all(stages, {1: one})
        store.remove(one)
        generate(stages, {2: other}, 1)
        assert set(kept.loaded) == {one, other}
        stages[0].edit([Drop(SeqId(1))])
        generate(stages, {3: store.add(make_adapter(model, tmp_path / "3", seed=3))}, 1)
        assert one not in kept.loaded


def test_adapter_that_is_loaded_later_takes_a_place_and_gives_the_same(model: Path, tmp_path: Path) -> None:
    store = AdapterStore()
    kinds = [(ALL, 4), (("q_proj",), 3), (("q_proj", "up_proj"), 4), (ALL, 2), (ALL, 6), (("down_proj",), 1)]
    folders = [make_adapter(model, tmp_path / f"{seed}", *kind, seed=seed) for seed, kind in enumerate(kinds)]
    keys = [store.add(folder) for folder in folders]
    with open_chain(MLX, model) as stages:
        alone = {key: generate(stages, {seq: key})[seq] for seq, key in enumerate(keys, start=1)}
    with open_chain(MLX, model) as stages:
        for round_, key in enumerate([*keys, *keys[::-1], *keys], start=1):
            seqs = {100 * round_ + number: each for number, each in enumerate((key, "", keys[0]))}
            found = generate(stages, seqs)
            assert all(differ(found[seq], alone[each]) < CLOSE for seq, each in seqs.items() if each)
            if round_ == 9:
                store.remove(keys[3])
                store.add(folders[3])


class TestAdapters(AdapterConformance):
    @pytest.fixture(autouse=True)
    def _files(self, model: Path, tmp_path: Path) -> None:
        self.model, self.folder = model, tmp_path

    def open_stages(self) -> AbstractContextManager[list[Stage]]:
        return open_chain(MLX, self.model, 2)

    def add_adapters(self) -> list[str]:
        return [AdapterStore().add(make_adapter(self.model, self.folder / f"{seed}", seed=seed)) for seed in (1, 2)]
