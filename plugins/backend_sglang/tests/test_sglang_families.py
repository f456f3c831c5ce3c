"""What is recorded of SGLang's families: those that its stages cannot hold are refused by name, without SGLang."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallax_backend_sglang.families import PLAIN, SEEING, UNSPLIT, check_family
from parallax_core.api import LayerRange, Machine, StagePlan, Unsupported
from parallax_core.testing.blocks import bring_blocks
from parallax_models.plugin import parallax_register_models
from tests.support.checkpoints import save_family

HALF = LayerRange(0, 2)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a machine on which nothing but the stages decides."""
    monkeypatch.setattr(Machine, "has_nvidia_driver", lambda _: True)


def make_plan(folder: Path, name: str, layers: LayerRange | None = None) -> StagePlan:
    (folder / "config.json").write_text(json.dumps({"architectures": [name]}))
    return StagePlan(model=folder, layers=layers)


def test_no_family_of_ours_is_recorded_twice() -> None:
    ours = {name for spec in parallax_register_models() for name in spec.architectures}
    recorded = [*PLAIN, *SEEING, *UNSPLIT]
    assert len(recorded) == len(set(recorded))
    assert set(recorded) <= ours


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Qwen3NextForCausalLM", "SGLang 0.5.23 does not split Qwen3NextForCausalLM: it has no support for pipelines"),
        ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForConditionalGeneration has inputs other than text"),
    ],
)
def test_family_that_stages_cannot_hold_runs_whole(name: str, said: str, tmp_path: Path) -> None:
    assert check_family(make_plan(tmp_path, name))
    with pytest.raises(Unsupported, match=said) as caught:
        check_family(make_plan(tmp_path, name, HALF))
    assert "--backend sglang without --stages" in caught.value.hint


def test_of_other_families_nothing_is_told(tmp_path: Path) -> None:
    assert not check_family(make_plan(tmp_path, "NobodyForCausalLM", HALF))
    assert check_family(make_plan(tmp_path, "LlamaForCausalLM", HALF))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("deepseek_v4", "stage on SGLang cannot hold layers 0-2 of DeepseekV4ForCausalLM: hidden states of"),
        ("nemotron_h", "stage on SGLang cannot hold layers 0-2 of NemotronHForCausalLM: layer . has a recurrent state"),
        (
            "gpt_oss",
            "GptOssForCausalLM has sliding windows with a KV cache of their own, which a stage on SGLang lacks",
        ),
    ],
)
def test_shape_of_a_family_counts(kind: str, said: str, tmp_path: Path) -> None:
    save_family(kind, tmp_path)
    plan = bring_blocks(StagePlan(model=tmp_path, layers=HALF), "sglang")
    with pytest.raises(Unsupported, match=said):
        check_family(plan)
