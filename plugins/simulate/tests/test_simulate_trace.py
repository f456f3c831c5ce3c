from __future__ import annotations

import contextlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.base.errors import UsageError
from parallax_simulate.trace import Arrival, TraceOptions, make_trace, parse_length, read_trace


def options(rate: float = 5.0, burst: int = 1) -> TraceOptions:
    return TraceOptions(rate=rate, prompt=parse_length("10-20", "p"), output=parse_length("exp:50", "o"), burst=burst)


def test_arrivals_have_the_rate_and_the_lengths() -> None:
    found = list(make_trace(options(), 4000))
    assert found[-1].at == pytest.approx(800, rel=0.1)
    assert {arrival.prompt_tokens for arrival in found} == set(range(10, 21))
    assert sum(arrival.output_tokens for arrival in found) / 4000 == pytest.approx(50, rel=0.1)
    assert found == list(make_trace(options(), 4000))


def test_bursts_arrive_together_at_the_same_rate() -> None:
    found = list(make_trace(options(burst=8), 4000))
    assert len({arrival.at for arrival in found}) == 500
    assert found[-1].at == pytest.approx(800, rel=0.2)


@pytest.mark.parametrize("text", ["0", "5-4", "x", "exp:0", "", "-3", "99999999", "exp:1.5"])
def test_wrong_length_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="--prompt is"):
        parse_length(text, "--prompt")


def test_fixed_length_is_fixed() -> None:
    assert parse_length("7", "p")(Random(1)) == 7


def test_files_of_both_formats_are_read_in_order_of_time() -> None:
    lines = [
        '{"at": 2, "prompt": 5, "output": 6}',
        "",
        '{"at": 1.5, "prompt": 7, "output": 8, "group": 1, "shared": 3}',
    ]
    assert read_trace(lines, "t") == [Arrival(1.5, 7, 8, 1, 3), Arrival(2.0, 5, 6)]
    azure = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:05.4799600,110,0",
    ]
    first, second = read_trace(azure, "t")
    assert first == Arrival(0.0, 4808, 10)
    assert second.at == pytest.approx(1.5)
    assert (second.prompt_tokens, second.output_tokens) == (110, 1)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "line 1 of t"),
        ('{"at": 1, "prompt": 3}', "output is missing"),
        ('{"at": 1, "prompt": 0, "output": 1}', "prompt is 0"),
        ('{"at": -1, "prompt": 3, "output": 1}', "at is -1"),
        ('{"at": 1, "prompt": 3, "output": 1, "shared": 3}', "shared is 3"),
        ('{"at": 1, "prompt": 3, "output": 1, "x": 3}', "unknown field 'x'"),
        ("a,b", "has no requests"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests"),
    ],
)
def test_wrong_line_is_an_error_that_names_it(line: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        read_trace([line], "t")


@given(st.lists(st.text()))
def test_any_file_is_read_or_refused(lines: list[str]) -> None:
    with contextlib.suppress(UsageError):
        read_trace(lines, "t")
