"""The settings of a config.json, read and refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.base.errors import Unsupported
from parallax_core.checkpoint.config_reader import MOST_LAYERS, ConfigReader, count_layers

Read = Callable[[ConfigReader], object]

READS: dict[str, Read] = {
    "count": lambda reader: reader.count("x", default=3),
    "size": lambda reader: reader.size("x", 3),
    "number": lambda reader: reader.number("x", 3.0),
    "flag": lambda reader: reader.flag("x", default=True),
    "choose": lambda reader: reader.choose(("a", "b"), "x", default="a"),
    "list_words": lambda reader: reader.list_words("x", ("a", "b"), ("a",)),
    "list_numbers": lambda reader: reader.list_numbers("x"),
    "table": lambda reader: reader.table("x"),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
)


@pytest.mark.parametrize("name", READS)
@given(value=JSON)
def test_whatever_a_setting_is_it_is_read_or_refused_by_name(name: str, value: object) -> None:
    try:
        found = READS[name](ConfigReader({"x": value, "num_hidden_layers": 1}))
    except Unsupported as error:
        assert "'x' in config.json is" in error.message  # noqa: PT017 -- either outcome is right
    else:
        assert found is not None


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"a": 1, "b": 2}, 1),
        ({"b": 2}, 2),
        ({"a": None, "b": 2}, 2),
        ({}, 7),
        ({"a": 1, "text_config": {"b": 5}}, 5),
        ({"a": 1, "text_config": "x"}, 1),
    ],
)
def test_first_name_that_is_there_counts(config: dict[str, Any], found: int) -> None:
    assert ConfigReader(config).count("a", "b", default=7) == found


def test_setting_that_is_missing_is_named_with_the_next_step() -> None:
    with pytest.raises(Unsupported, match=r"config\.json has no 'a'") as error:
        ConfigReader({}, "ask somebody").count("a", "b")
    assert error.value.hint == "ask somebody"


@pytest.mark.parametrize("name", ["num_hidden_layers", "n_layer"])
def test_layers_have_a_bound(name: str) -> None:
    assert ConfigReader({name: MOST_LAYERS}).count(name) == MOST_LAYERS
    with pytest.raises(Unsupported, match=f"not a whole number from 1 to {MOST_LAYERS}"):
        ConfigReader({name: MOST_LAYERS + 1}).count(name)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, None),
        ({"num_hidden_layers": "4"}, None),
        ({"num_hidden_layers": True}, None),
        ({"n_layer": 4}, 4),
        ({"n_layer": 4, "text_config": {"num_layers": 5}}, 5),
        ({"n_layer": 4, "text_config": {}}, 4),
        ({"layers_block_type": ["mamba", "moe", "attention"]}, 3),
        ({"hybrid_override_pattern": "ME*-"}, 4),
        ({"num_hidden_layers": 2, "hybrid_override_pattern": "ME*-"}, 2),
        ({"layers_block_type": [], "hybrid_override_pattern": None}, None),
    ],
)
def test_number_of_layers_is_found_under_any_of_its_names(config: dict[str, Any], found: int | None) -> None:
    assert count_layers(config) == found


@pytest.mark.parametrize("count", [0, -1, 10**12])
def test_number_of_layers_that_no_model_has_is_refused(count: int) -> None:
    with pytest.raises(Unsupported, match=f"states that the model has {count} layers"):
        count_layers({"num_hidden_layers": count})


@pytest.mark.parametrize("words", ["a", ["a", "c"], ["a"], ["a", "b", "a"], [["a"], "b"]])
def test_words_of_layers_are_of_those_allowed_and_as_many_as_there_are_layers(words: object) -> None:
    reader = ConfigReader({"kinds": words, "num_hidden_layers": 2})
    with pytest.raises(Unsupported, match=r"'kinds' in config\.json is"):
        reader.list_words("kinds", ("a", "b"), ("a", "a"))
    assert ConfigReader({"num_hidden_layers": 2}).list_words("kinds", ("a", "b"), ("a", "b")) == ("a", "b")


@pytest.mark.parametrize(("around", "inside", "found"), [(True, False, True), (False, True, False), (None, True, True)])
def test_head_is_the_embedding_if_the_model_around_the_text_says_so(
    around: bool | None, inside: bool, found: bool
) -> None:
    config = {"tie_word_embeddings": around, "text_config": {"tie_word_embeddings": inside}}
    assert ConfigReader(config).flag("tie_word_embeddings", default=False) is found
