from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.devices import DEVICES, FREE_SHARE, GB, find_device, recognise_product


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Radeon RX 7900 XTX", "RX7900XTX"),
        ("Apple M3 Max", "M3Max"),
        ("Apple M3", "M3"),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", None),
        ("NVIDIA A100X", None),
        ("Intel(R) Xeon(R) Processor", None),
        ("", None),
    ],
)
def test_products_of_the_vendors_tools_are_recognised(product: str, name: str | None) -> None:
    found = recognise_product(product)
    assert (found.name if found else None) == name


@given(st.text(max_size=60))
def test_any_text_is_a_known_product_or_none(product: str) -> None:
    found = recognise_product(product)
    assert found is None or found.name in DEVICES


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_is_found_by_its_name(name: str) -> None:
    device = find_device(name.upper())
    assert device
    assert device.name == name
    assert recognise_product(name) == device


def test_figures_are_those_that_were_read_from_the_data_sheets() -> None:
    """Whoever changes a figure, on purpose, writes down the new digest."""
    digest = hashlib.sha256(json.dumps(DEVICES).encode()).hexdigest()
    assert digest == "94abf4b1a444e13d29d5d9670ad40dea11cd160f3edfefeca6399ea772c5bbcf"


def test_profile_has_the_figures_in_bytes_and_operations_and_leaves_some_memory() -> None:
    device = find_device("h200")
    assert device is not None
    assert (device.flops, device.bandwidth, device.memory) == (989e12, 4800e9, int(141 * FREE_SHARE * GB))
    assert 0.9 < device.memory / (141 * GB) < 1
    assert find_device("H200 NVL") is None
    assert recognise_product("H200 NVL") == device


def test_size_after_the_model_is_needed_where_there_are_several() -> None:
    assert recognise_product("NVIDIA A100-SXM4-80GB MIG") == find_device("A100-80GB")
    assert recognise_product("NVIDIA A100") is None
    assert recognise_product("NVIDIA GeForce RTX 5090 Mobile") is None
