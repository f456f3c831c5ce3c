from __future__ import annotations

import contextlib

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
