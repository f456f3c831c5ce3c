"""Every family was compared with transformers, whole and split, and the page of families says so."""

from __future__ import annotations

import json

import pytest

from benchmarks.templates import TEMPLATES
from tests.rules.familiespage import PAGE, read_record, write_page
from tests.rules.familiespage import TEMPLATES as RECORD
from tests.support.checkpoints import REGULAR, SERVED


def test_record_names_every_family() -> None:
    assert read_record("torch").keys() == SERVED.keys(), "run: python -m benchmarks families-torch"


@pytest.mark.parametrize("kind", SERVED)
def test_family_passed_whole_and_in_every_split(kind: str) -> None:
    found = read_record("torch")[kind]
    assert found["passed"]
    layers = int(SERVED[kind].get("num_hidden_layers", 4))
    illegal = found.get("illegal", {})
    assert all(f"between layers {int(cut) - 1} and {cut}: layer" in message for cut, message in illegal.items())
    legal = [cut for cut in range(1, layers) if str(cut) not in illegal]
    cuts = {f"[{cut}]" for cut in legal} | {str(legal), str([legal[0], legal[-1]]), "whole"}
    assert found["splits"].keys() == cuts


def test_every_model_type_on_mlx_passed_or_is_refused_for_a_reason() -> None:
    record = read_record("mlx")
    assert record.keys() == SERVED.keys(), "run: python -m benchmarks families-mlx"
    for kind, found in record.items():
        assert found.get("passed") or "mlx-lm" in found["refused"], kind
        assert found.get("changes", {}) == REGULAR.get(kind, {}), kind


def test_every_published_template_chose_a_parser_that_reads_what_it_writes() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))["templates"]
    named = {f"{source}/{name}" for source, names in TEMPLATES.items() for name in names}
    assert record.keys() == named, "run: python -m benchmarks templates"
    assert all(found["passed"] for found in record.values())


def test_page_of_families_is_that_of_the_code_and_the_record() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "run: python -m tests.rules.familiespage"
