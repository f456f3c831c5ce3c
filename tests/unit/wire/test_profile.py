from __future__ import annotations

import contextlib
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.wire.errors import BadFrame
from parallax_core.wire.profile import (
    MOST_MODELS,
    DeviceReport,
    NodeReport,
    StoredLayers,
    check_report,
    decode_report,
    encode_report,
)

DEVICE: dict[str, Any] = {
    "memory": 10**9,
    "flops": 1e12,
    "bandwidth": 1e10,
    "name": "RTX4090",
    "total_memory": 2 * 10**9,
}


def make_report(**changes: Any) -> NodeReport:
    return NodeReport(backend="torch", device=DeviceReport(**{**DEVICE, **changes}))


REPORT = NodeReport(
    backend="torch",
    device=DeviceReport(**DEVICE, is_measured=True),
    dtype="bfloat16",
    disk_bandwidth=5e8,
    disk_free=10**12,
    stored=(StoredLayers("hf:org/name", 0, 12),),
)


def test_report_arrives_as_it_was_sent() -> None:
    assert decode_report(encode_report(REPORT)) == REPORT


@pytest.mark.parametrize("name", ["flops", "bandwidth", "step_s", "layer_s", "flops_efficiency", "memory"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(BadFrame):
        decode_report(msgspec.msgpack.encode(make_report(**{name: value})))


@pytest.mark.parametrize("name", ["flops", "bandwidth"])
def test_speed_of_zero_is_refused(name: str) -> None:
    with pytest.raises(BadFrame):
        decode_report(encode_report(make_report(**{name: 0.0})))


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (make_report(memory=3 * 10**9), "more free memory than memory"),
        (make_report(name="\x1b[31mred"), "unprintable"),
        (msgspec.structs.replace(REPORT, backend="\n"), "unprintable"),
        (msgspec.structs.replace(REPORT, stored=(StoredLayers("hf:org/name", 3, 3),)), "do not exist"),
    ],
)
def test_fields_that_do_not_fit_are_refused(report: NodeReport, words: str) -> None:
    with pytest.raises(BadFrame, match=words):
        check_report(report)
    with pytest.raises(BadFrame, match=words):
        decode_report(encode_report(report))


def test_endless_list_of_models_is_refused() -> None:
    stored = (StoredLayers("hf:org/name", 0, 12),) * (MOST_MODELS + 1)
    with pytest.raises(BadFrame, match="length"):
        decode_report(encode_report(msgspec.structs.replace(REPORT, stored=stored)))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_report_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadFrame):
        check_report(decode_report(data))


@given(st.integers(0, len(encode_report(REPORT)) - 1), st.integers(0, 255))
def test_changed_byte_gives_a_valid_report_or_is_refused(place: int, value: int) -> None:
    data = bytearray(encode_report(REPORT))
    data[place] = value
    try:
        report = decode_report(bytes(data))
    except BadFrame:
        return
    device = report.device
    assert all(math.isfinite(each) and each > 0 for each in (device.flops, device.bandwidth, report.disk_bandwidth))
    assert all(math.isfinite(each) and each >= 0 for each in (device.step_s, device.layer_s, device.memory))
