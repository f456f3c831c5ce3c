"""Every family was compared with transformers, whole and split, and the page of families says so."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.templates import TEMPLATES
from parallax_core.api import LayerRange, Machine, StagePlan, Unsupported, list_borders
from parallax_core.testing.blocks import bring_blocks
from tests.rules.familiespage import ENGINES, PAGE, find_reason, read_record, write_page
from tests.rules.familiespage import TEMPLATES as RECORD
from tests.support.checkpoints import REGULAR, SERVED, make_model
from tests.support.engine_families import list_changes
from tests.support.published import PUBLISHED

KINDS = SERVED | {kind: SERVED[base] for kind, (base, _) in PUBLISHED.items()}
"""The settings of every model type that is compared."""

OF_THE_FORM = {"hunyuan_v1_dense", "hunyuan_v1_moe", "kimi_linear", "minimax_m3_vl", "nemotron_h"}
"""Models that SGLang does not load whole as transformers writes them, which says nothing of published files."""


def test_record_names_every_family() -> None:
    assert read_record("torch").keys() == KINDS.keys(), "run: python -m benchmarks families-torch"


@pytest.mark.parametrize("kind", KINDS)
def test_family_passed_whole_and_in_every_split(kind: str) -> None:
    found = read_record("torch")[kind]
    assert found["passed"]
    layers = int(KINDS[kind].get("num_hidden_layers", 4))
    illegal = found.get("illegal", {})
    assert all(f"between layers {int(cut) - 1} and {cut}: layer" in message for cut, message in illegal.items())
    legal = [cut for cut in range(1, layers) if str(cut) not in illegal]
    cuts = {f"[{cut}]" for cut in legal} | {str(legal), str([legal[0], legal[-1]]), "whole"}
    assert found["splits"].keys() == cuts


def test_every_model_type_on_mlx_passed_or_is_refused_for_a_reason() -> None:
    record = read_record("mlx")
    assert record.keys() == KINDS.keys(), "run: python -m benchmarks families-mlx"
    for kind, found in record.items():
        assert found.get("passed") or "mlx-lm" in found["refused"], kind
        assert found.get("changes", {}) == REGULAR.get(kind, {}), kind


def test_every_published_template_chose_a_parser_that_reads_what_it_writes() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))["templates"]
    named = {f"{source}/{name}" for source, names in TEMPLATES.items() for name in names}
    assert record.keys() == named, "run: python -m benchmarks templates"
    assert all(found["passed"] for found in record.values())


@pytest.mark.parametrize(("engine", "kind"), [(engine, kind) for engine in ENGINES for kind in read_record(engine)])
def test_check_of_an_engine_says_what_its_record_does(
    engine: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "has_nvidia_driver", lambda _: False)
    found = read_record(engine)[kind]
    plan = make_plan(kind, engine, tmp_path)
    assert plan.shape is not None
    legal = [border.layer for border in list_borders(plan.shape) if not border.obstacle]
    middle = legal[len(legal) // 2]
    check: Callable[[StagePlan], bool] = importlib.import_module(f"parallax_backend_{engine}.families").check_family
    halves = LayerRange(0, middle), LayerRange(middle, len(plan.shape.layers))
    for name, parts in {"whole": (None,), f"{engine}|{engine}": halves}.items():
        if name in found and (engine, name, kind in OF_THE_FORM) != ("sglang", "whole", True):
            are_refused = [is_refused(check, replace(plan, layers=layers)) for layers in parts]
            assert bool(find_reason(found[name])) == any(are_refused), name


def make_plan(kind: str, engine: str, folder: Path) -> StagePlan:
    """Return the plan of the model that was tried on an engine, without its weights."""
    with torch.device("meta"):
        model = make_model(kind, SERVED[kind] | list_changes(kind, engine))
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return bring_blocks(StagePlan(model=folder, dtype="float32"), engine)


def is_refused(check: Callable[[StagePlan], bool], plan: StagePlan) -> bool:
    """Tell whether a plan is refused; what is only found out when a model is loaded counts as that, too."""
    try:
        return not check(plan)
    except Unsupported:
        return True


def test_page_of_families_is_that_of_the_code_and_the_record() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "run: python -m tests.rules.familiespage"
