"""The patterns of PEFT's settings match the modules that Python's expressions do, in bounded time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_adapters.expressions import Expression
from parallax_core.api import Unsupported

MODULES = [
    f"{prefix}layers.{layer}.{name}"
    for prefix in ("model.", "model.language_model.")
    for layer in (0, 1, 2, 9, 10, 21)
    for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj", "mlp.experts.3.up_proj")
]


@pytest.mark.parametrize(
    "text",
    [
        r"(.*\.)?(self_attn\..*)",
        r"(.*\.)?(layers\.(0|1|2)\..*_proj)",
        r"(.*\.)?(layers\.\d+\.mlp\.(up|gate|down)_proj)",
        r"(.*\.)?(layers\.1[0-9]?\.self_attn\.[qkv]_proj)",
        r"(model\.language_model\..*?)",
        r"(.*\.)?(.*\.[^.]*(?:q|o)_proj)",
        r"(.*\.)?(q_proj|)",
        r"(.*\.)?(layers\.\S+?[]x\d]\.\w+\.\D+)",
        r"()",
    ],
)
def test_modules_match_as_in_python(text: str) -> None:
    found, wanted = Expression(text), re.compile(text)
    assert [found.matches(module) for module in MODULES] == [bool(wanted.fullmatch(module)) for module in MODULES]


ATOMS = st.sampled_from(["a", "b", ".", r"\d", "[ab]", "[^a]", r"\."])
TEXTS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?"])).map(lambda two: f"(?:{two[0]}){two[1]}"),
    ),
    max_leaves=8,
)


@given(TEXTS, st.lists(st.text("ab.1", max_size=6), max_size=6))
def test_any_expression_matches_as_in_python(text: str, tried: list[str]) -> None:
    found = Expression(text)
    assert [found.matches(each) for each in tried] == [re.fullmatch(text, each) is not None for each in tried]


def test_time_does_not_grow_with_the_ways_to_match() -> None:
    begun = time.process_time()
    for text in ("(a+)+b", "(a|a)*b", "(a?" * 20 + "a" + ")" * 20 + "b", "(.*)*" * 30 + "b"):
        assert not Expression(text).matches("a" * 300)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "text",
    ["(", ")", "a)", "*", "a**", "a{2}", "a^", "$a", "(?=a)", "(?P<x>a)", r"\1", r"\b", "[a", "[z-a]", "\\", "a" * 201],
)
def test_what_is_not_read_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match="the expression"):
        Expression(text)
