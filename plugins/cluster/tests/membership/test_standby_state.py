from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.membership.standby_state import ClusterSettings, StandbyState, read_state, write_state

STATE = StandbyState(
    cluster=b"c" * 16,
    term=3,
    model="org/model",
    settings=ClusterSettings(dtype="float32", backend="mlx", concurrency=4),
    machines={"kitchen": b"k" * 32},
    plan={0: [("kitchen/7", 0, 12, -1, 0, 12, 1.0), ("desk/1", 12, 30, 1, 0, 30, 0.5)], 2: []},
    other_models=["org/other"],
)


def test_state_survives_being_written() -> None:
    assert read_state(write_state(STATE)) == STATE


@given(st.binary(max_size=200))
def test_bytes_of_no_meaning_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_state(data)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_damaged_state_is_refused_or_is_a_state(place: int, value: int) -> None:
    data = bytearray(write_state(STATE))
    data[place % len(data)] = value
    with contextlib.suppress(ValueError):
        assert isinstance(read_state(bytes(data)), StandbyState)


@pytest.mark.parametrize("change", [{"concurrency": 0}, {"objective": "fun"}, {"prompt_tokens": "many"}, {"extra": 1}])
def test_impossible_settings_are_refused(change: dict[str, object]) -> None:
    raw = msgspec.to_builtins(STATE, builtin_types=(bytes,))
    raw["settings"] |= change
    with pytest.raises(ValueError, match=r"settings"):
        read_state(msgspec.msgpack.encode(raw))


@pytest.mark.parametrize(
    ("name", "most", "make"),
    [
        ("other_models", 1000, lambda count: ["org/other"] * count),
        ("drained", 10_000, lambda count: ["desk"] * count),
        ("machines", 10_000, lambda count: {str(number): b"k" for number in range(count)}),
        ("servers", 10_000, lambda count: {str(number): b"k" for number in range(count)}),
        ("removed", 10_000, lambda count: {str(number).encode(): "desk" for number in range(count)}),
        ("predecessor", 256, bytes),
    ],
)
def test_state_has_bounds(name: str, most: int, make: Callable[[int], Any]) -> None:
    largest = msgspec.structs.replace(STATE, **{name: make(most)})
    assert read_state(write_state(largest)) == largest
    with pytest.raises(ValueError, match=name):
        read_state(write_state(msgspec.structs.replace(STATE, **{name: make(most + 1)})))


@pytest.mark.parametrize("name", ["concurrency", "prompt_tokens", "output_tokens"])
def test_numbers_of_the_settings_are_1_to_ten_millions(name: str) -> None:
    def read(number: int) -> StandbyState:
        settings = msgspec.structs.replace(STATE.settings, **{name: number})
        return read_state(write_state(msgspec.structs.replace(STATE, settings=settings)))

    assert getattr(read(1).settings, name) == 1
    assert getattr(read(10_000_000).settings, name) == 10_000_000
    for number in (0, 10_000_001):
        with pytest.raises(ValueError, match=name):
            read(number)
    usual = ClusterSettings()
    assert (usual.concurrency, usual.prompt_tokens, usual.output_tokens) == (8, 512, 256)
