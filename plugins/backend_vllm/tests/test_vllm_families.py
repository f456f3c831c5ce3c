"""What is recorded of vLLM's families: those that its stages cannot hold are refused by name, without vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallax_backend_vllm import families
from parallax_backend_vllm.families import ABSENT, HYBRID, PLAIN, SEEING, check_family
from parallax_core.api import LayerRange, Machine, StagePlan, Unsupported
from parallax_core.testing.blocks import bring_blocks
from parallax_models.plugin import parallax_register_models
from tests.support.checkpoints import save_family

HALF = LayerRange(0, 2)


@pytest.fixture(autouse=True)
def other_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a release of which nothing is recorded but its families."""
    monkeypatch.setattr(families, "find_installed", lambda: "0.31.0")


def make_plan(folder: Path, name: str, layers: LayerRange | None = None) -> StagePlan:
    (folder / "config.json").write_text(json.dumps({"architectures": [name]}))
    return StagePlan(model=folder, layers=layers)


def test_every_family_of_ours_is_recorded_once() -> None:
    ours = {name for spec in parallax_register_models() for name in spec.architectures}
    groups = PLAIN, HYBRID, SEEING, ABSENT
    assert frozenset().union(*groups) == ours
    assert sum(map(len, groups)) == len(ours)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Qwen3NextForCausalLM", "Qwen3NextForCausalLM has recurrent states, which a stage on vLLM"),
        ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForConditionalGeneration has inputs other than text"),
    ],
)
def test_family_that_stages_cannot_hold_runs_whole(name: str, said: str, tmp_path: Path) -> None:
    assert check_family(make_plan(tmp_path, name))
    with pytest.raises(Unsupported, match=said) as caught:
        check_family(make_plan(tmp_path, name, HALF))
    assert "--backend vllm without --stages" in caught.value.hint


def test_family_that_vllm_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"vLLM 0.32.0 has no model for the architecture MiniMaxM3VLForCausalLM"):
        check_family(make_plan(tmp_path, "MiniMaxM3VLForCausalLM"))


@pytest.mark.parametrize("name", families.UNREAD)
def test_setting_that_vllm_does_not_read_is_refused(name: str, tmp_path: Path) -> None:
    plan, setting = make_plan(tmp_path, name), families.UNREAD[name]
    for value in (False, True):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], setting: value}))
        if not value:
            assert check_family(plan)
    with pytest.raises(Unsupported, match=rf"vLLM 0.32.0 does not read '{setting}' of {name}, and its results"):
        check_family(plan)


def test_tied_head_that_vllm_cannot_split_runs_whole(tmp_path: Path) -> None:
    name = "Ernie4_5_MoeForCausalLM"
    plan = make_plan(tmp_path, name, HALF)
    assert check_family(plan)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], "tie_word_embeddings": True}))
    assert check_family(StagePlan(model=tmp_path))
    with pytest.raises(Unsupported, match=rf"vLLM 0.32.0 does not split {name} if its head is the embedding"):
        check_family(plan)


def test_of_other_families_nothing_is_told(tmp_path: Path) -> None:
    assert not check_family(make_plan(tmp_path, "NobodyForCausalLM", HALF))
    assert check_family(make_plan(tmp_path, "LlamaForCausalLM", HALF))


def test_border_of_a_family_counts(tmp_path: Path) -> None:
    save_family("hy_v4", tmp_path)
    plan = bring_blocks(StagePlan(model=tmp_path, layers=HALF), "vllm")
    with pytest.raises(Unsupported, match=r"stage on vLLM cannot hold layers 0-2 of HYV4ForCausalLM: hidden states of"):
        check_family(plan)


def test_family_that_a_cpu_does_not_run_is_refused_whole_and_in_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    plans = [make_plan(tmp_path, "GptOssForCausalLM", layers) for layers in (None, HALF)]
    monkeypatch.setattr(Machine, "has_nvidia_driver", lambda _: False)
    for plan in plans:
        with pytest.raises(Unsupported, match=r"vLLM 0.32.0 does not run GptOssForCausalLM on a CPU: No Unq"):
            check_family(plan)
    monkeypatch.setattr(families, "find_installed", lambda: "0.31.0")
    assert all(map(check_family, plans)), "nothing is recorded of that release"
    monkeypatch.undo()
    monkeypatch.setattr(Machine, "has_nvidia_driver", lambda _: True)
    assert all(map(check_family, plans))
