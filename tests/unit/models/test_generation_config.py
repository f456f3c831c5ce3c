from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.contracts.sample import Sampling
from parallax_core.models.generation_config import FILE, RequestDefaults, check_choice, read_generation


def write(folder: Path, **content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_text(json.dumps(content))
    return folder / FILE


def test_fields_that_count_are_those_of_vllm(tmp_path: Path) -> None:
    stated: dict[str, Any] = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    stated |= {"presence_penalty": 1.5, "frequency_penalty": -0.5}
    write(tmp_path, **stated, max_new_tokens=100, do_sample=False, max_length=20, transformers_version="5")
    defaults = read_generation(tmp_path).defaults
    assert defaults == RequestDefaults(Sampling(**stated), 100)
    assert defaults.describe() == {**stated, "max_tokens": 100}


@pytest.mark.parametrize(
    "content", [{}, {"temperature": None, "top_p": None, "max_new_tokens": None}, {"temperature": 1, "top_k": -1}]
)
def test_what_is_not_recommended_is_as_in_openais_api(tmp_path: Path, content: Any) -> None:
    write(tmp_path, **content)
    assert read_generation(tmp_path).defaults == RequestDefaults()
    assert read_generation(tmp_path).defaults.describe() == {}


def test_model_without_the_file_recommends_nothing(tmp_path: Path) -> None:
    assert read_generation(tmp_path).defaults == RequestDefaults()


def test_greedy_recommendation_is_followed(tmp_path: Path) -> None:
    write(tmp_path, temperature=0)
    assert read_generation(tmp_path).defaults.sampling.temperature == 0


@pytest.mark.parametrize("choice", ["off", "vllm"])
def test_recommendation_that_is_turned_off_does_not_count_even_if_it_is_wrong(tmp_path: Path, choice: str) -> None:
    write(tmp_path, temperature="hot", eos_token_id=[3])
    found = read_generation(tmp_path, choice)
    assert (found.defaults, found.eos_token_id) == (RequestDefaults(), [3])


@pytest.mark.parametrize("is_folder", [True, False])
def test_other_file_replaces_the_recommendation_but_not_what_ends_a_text(tmp_path: Path, is_folder: bool) -> None:
    write(tmp_path, temperature=0.1, top_k=5, eos_token_id=[3, 4])
    other = write(tmp_path / "other", temperature=0.7)
    found = read_generation(tmp_path, str(other.parent if is_folder else other))
    assert found.defaults.describe() == {"temperature": 0.7}
    assert found.eos_token_id == [3, 4]
    write(tmp_path / "other", eos_token_id=9)
    assert read_generation(tmp_path, str(other)).eos_token_id == 9


@pytest.mark.parametrize("choice", ["nowhere", ""])
def test_other_file_that_is_not_there_is_named(tmp_path: Path, choice: str) -> None:
    for refuse in (partial(read_generation, tmp_path), check_choice):
        with pytest.raises(UsageError, match=f"there is no file .*{choice}") as caught:
            refuse(choice)
        assert "auto, off" in caught.value.hint


def test_choice_that_can_be_had_is_accepted_before_there_is_a_model(tmp_path: Path) -> None:
    for choice in ("auto", "off", "vllm", str(write(tmp_path))):
        check_choice(choice)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", True),
        ("top_k", [1]),
        ("top_k", -2),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3),
        ("max_new_tokens", 0),
    ],
)
def test_value_out_of_range_is_named_with_its_file(tmp_path: Path, field: str, value: object) -> None:
    write(tmp_path, **{field: value})
    with pytest.raises(ParallaxError, match=rf"generation_config\.json cannot be used: .*{field}") as caught:
        read_generation(tmp_path)
    assert "--set generation_config=off" in caught.value.hint
