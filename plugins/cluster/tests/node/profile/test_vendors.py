"""The outputs are recorded: each names where it was published."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.node.profile.vendors import (
    MOST_BYTES,
    Gpu,
    parse_amd_smi,
    parse_apple,
    parse_nvidia,
    parse_rocm,
    parse_vm_stat,
)
from plugins.cluster.tests.node.profile import recorded

PARSERS = (parse_nvidia, parse_rocm, parse_amd_smi, parse_apple)
MIB = 2**20


def test_nvidia_memory_is_in_mebibytes() -> None:
    assert parse_nvidia(recorded.NVIDIA) == [
        Gpu("NVIDIA A800-SXM4-80GB", 81920 * MIB, 81176 * MIB),
        Gpu("NVIDIA GeForce RTX 5070 Ti", 16303 * MIB, 14109 * MIB),
    ]


def test_nvidia_gpu_that_shares_main_memory_has_none_of_its_own() -> None:
    assert parse_nvidia(recorded.NVIDIA_GB10) == [Gpu("NVIDIA GB10", 0, 0)]


def test_rocm_memory_is_in_bytes() -> None:
    assert parse_rocm(recorded.ROCM) == [Gpu("Radeon RX 7900 XT", 21458059264, 21458059264 - 27856896)]


def test_amd_smi_is_read_in_both_forms() -> None:
    expected = [Gpu("AMD Instinct MI300X", 196592 * MIB, 0)]
    assert parse_amd_smi(recorded.AMD_SMI) == expected
    assert parse_amd_smi(json.dumps({"gpu_data": json.loads(recorded.AMD_SMI)})) == expected


@pytest.mark.parametrize(
    ("unit", "size"),
    [("B", 1), ("KB", 1024), ("MB", 1024**2), ("GB", 1024**3), ("TB", 1024**4), ("pages", 1024**2), (None, 1024**2)],
)
def test_amd_smi_names_the_unit_of_its_memory(unit: str | None, size: int) -> None:
    card = {"asic": {"market_name": "AMD"}, "vram": {"size": {"value": 16, "unit": unit}}}
    assert parse_amd_smi(json.dumps([card])) == [Gpu("AMD", 16 * size, 0)]


def test_apple_gpu_shares_main_memory() -> None:
    assert parse_apple(recorded.APPLE) == [Gpu("Apple M3 Pro", 0, 0)]


def test_free_memory_of_a_mac_counts_pages_that_can_be_taken() -> None:
    assert parse_vm_stat(recorded.VM_STAT) == (334212 + 1367584 + 81968 + 377078) * 4096


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text", ["", "\0", "[]", "{}", "null", "[" * 100_000, '{"card0": 1}', "a,b,c", '{"gpu_data": 1}']
)
def test_garbage_is_no_gpu(parse: object, text: str) -> None:
    assert callable(parse)
    assert parse(text) in ([], [Gpu("a", 0, 0)])


@pytest.mark.parametrize("size", ["-1", "1e999", "nan", "9" * 400, "", "²", "99999999999999999", "0x10", "[N/A]"])
def test_sizes_that_are_not_believed_are_unknown(size: str) -> None:
    assert parse_nvidia(f"card, {size}, {size}") == [Gpu("card", 0, 0)]
    card = {"Card Series": "card", "VRAM Total Memory (B)": size}
    assert parse_rocm(json.dumps({"card0": card})) == [Gpu("card", 0, 0)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "card0",
                    "Card Series",
                    "VRAM Total Memory (B)",
                    "VRAM Total Used Memory (B)",
                    "gpu_data",
                    "asic",
                    "vram",
                    "market_name",
                    "size",
                    "value",
                    "unit",
                    "SPDisplaysDataType",
                    "sppci_model",
                    "_name",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.text(max_size=200) | JSON.map(json.dumps))
def test_any_output_gives_plausible_gpus(text: str) -> None:
    for parse in PARSERS:
        for gpu in parse(text):
            assert gpu.name
            assert gpu.name.isprintable()
            assert 0 <= gpu.free <= gpu.total <= MOST_BYTES
    assert 0 <= (parse_vm_stat(text) or 0) <= MOST_BYTES


@given(st.integers(0, 400), st.characters())
def test_damaged_output_gives_plausible_gpus(place: int, char: str) -> None:
    outputs = (recorded.NVIDIA, recorded.ROCM, recorded.AMD_SMI, recorded.APPLE)
    for parse, text in zip(PARSERS, outputs, strict=True):
        damaged = text[:place] + char + text[place + 1 :]
        assert all(0 <= gpu.free <= gpu.total <= MOST_BYTES for gpu in parse(damaged))


def test_sizes_are_in_the_unit_that_is_said() -> None:
    units = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40, "furlong": 2**20}
    for unit, factor in units.items():
        cards = [{"asic": {"market_name": "X"}, "vram": {"size": {"value": 3, "unit": unit}}}]
        assert parse_amd_smi(json.dumps(cards)) == [Gpu("X", 3 * factor, 0)]


@pytest.mark.parametrize(
    ("text", "size"), [(str(2**30), 2**50), (str(2**30 + 1), 0), ("0" * 15 + "1", MIB), ("0" * 16 + "1", 0)]
)
def test_size_that_is_not_believed_counts_as_none(text: str, size: int) -> None:
    assert parse_nvidia(f"X, {text}, 0") == [Gpu("X", size, 0)]


def test_so_many_gpus_with_such_names_are_told() -> None:
    found = parse_nvidia(f"{'x' * 101}, 8, 9\n" * 65)
    assert found == [Gpu("x" * 100, 8 * MIB, 8 * MIB)] * 64


def test_free_memory_of_a_mac_has_a_bound() -> None:
    text = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free: 999999999999999.\n"
    assert parse_vm_stat(text) == 2**50
