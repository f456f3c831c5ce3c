from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.devices import DEVICES, find_device, recognise_product


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
