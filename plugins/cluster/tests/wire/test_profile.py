from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.labels import MOST_LABELS
from parallax_cluster.wire.profile import (
    MOST_LINKS,
    MOST_MODELS,
    MOST_VERSIONS,
    DeviceReport,
    LinkReport,
    LinkTried,
    NodeReport,
    StoredLayers,
    check_report,
)
from parallax_core.api import Frame
from parallax_core.base.errors import ParallaxError
from parallax_core.base.printable import make_printable
from parallax_core.wire.codec import encode
from parallax_core.wire.errors import BadFrame
from tests.unit.wire.damage import decode_any

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
    links=(LinkReport("head", 0.002, 1e8), LinkReport("attic/7", 0.0, 1e3)),
    labels=(("room", "attic"),),
    versions=(("parallax-core", "0.1.0"),),
    max_context=4096,
)


def test_reason_that_no_link_was_made_is_tidied_before_it_is_shown() -> None:
    tried = LinkTried("mini/7", is_reached=False, reason="no\x1b[31m\nroute")
    assert tried.tidy() == LinkTried("mini/7", is_reached=False, reason=make_printable(tried.reason, 100))
    assert tried.tidy().reason.isprintable()


def test_report_arrives_as_it_was_sent() -> None:
    assert decode_any(encode(REPORT)) == REPORT


@pytest.mark.parametrize("name", ["flops", "bandwidth", "step_s", "layer_s", "flops_efficiency", "memory"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(BadFrame):
        decode_any(encode(make_report(**{name: value})))


@pytest.mark.parametrize("name", ["flops", "bandwidth"])
def test_speed_of_zero_is_refused(name: str) -> None:
    with pytest.raises(BadFrame):
        decode_any(encode(make_report(**{name: 0.0})))


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (make_report(memory=3 * 10**9), "more free memory than memory"),
        (make_report(name="\x1b[31mred"), "unprintable"),
        (msgspec.structs.replace(REPORT, backend="\n"), "unprintable"),
        (msgspec.structs.replace(REPORT, stored=(StoredLayers("hf:org/name", 3, 3),)), "do not exist"),
        (msgspec.structs.replace(REPORT, links=(LinkReport("\x1b", 0.1, 1e6),)), "unprintable"),
        (msgspec.structs.replace(REPORT, versions=(("parallax-core", "\x1b"),)), "unprintable"),
        (msgspec.structs.replace(REPORT, labels=(("room", "a=b"),)), "another form than KEY=VALUE"),
    ],
)
def test_fields_that_do_not_fit_are_refused(report: NodeReport, words: str) -> None:
    with pytest.raises(BadFrame, match=words):
        check_report(report)
    with pytest.raises(BadFrame, match=words):
        decode_any(encode(report))


@pytest.mark.parametrize(
    "report",
    [
        msgspec.structs.replace(REPORT, stored=REPORT.stored * (MOST_MODELS + 1)),
        msgspec.structs.replace(REPORT, links=REPORT.links[:1] * (MOST_LINKS + 1)),
        msgspec.structs.replace(REPORT, labels=(("room", "attic"),) * (MOST_LABELS + 1)),
        msgspec.structs.replace(REPORT, versions=(("parallax-core", "1"),) * (MOST_VERSIONS + 1)),
    ],
)
def test_endless_list_is_refused(report: NodeReport) -> None:
    with pytest.raises(BadFrame, match="length"):
        decode_any(encode(report))


@pytest.mark.parametrize(
    "link", [("head", math.nan, 1e8), ("head", 0.1, 0.0), ("head", -0.1, 1e8), ("x" * 257, 0, 1e8)]
)
def test_link_out_of_range_is_refused(link: tuple[str, float, float]) -> None:
    with pytest.raises(BadFrame):
        decode_any(encode(msgspec.structs.replace(REPORT, links=(LinkReport(*link),))))


@given(st.integers(0, len(encode(REPORT).header) - 1), st.integers(0, 255))
def test_changed_byte_gives_a_valid_report_or_is_refused(place: int, value: int) -> None:
    data = bytearray(encode(REPORT).header)
    data[place] = value
    try:
        report = decode_any(Frame(bytes(data)))
    except ParallaxError:
        return
    if not isinstance(report, NodeReport):  # its tag has changed
        return
    device = report.device
    assert all(math.isfinite(each) and each > 0 for each in (device.flops, device.bandwidth, report.disk_bandwidth))
    assert all(math.isfinite(each) and each >= 0 for each in (device.step_s, device.layer_s, device.memory))
    assert all(math.isfinite(each.round_trip_s) and each.bandwidth > 0 for each in report.links)
