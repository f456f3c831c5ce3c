from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.devices import DEVICES, FREE_SHARE, GB, find_device


@pytest.mark.parametrize(
    ("text", "name", "memory_gb"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX4090", 24),
        ("RTX 4090", "RTX4090", 24),
        ("4090", "RTX4090", 24),
        ("RTX 4090 48GB", "RTX4090", 48),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX4090Laptop", 16),
        ("NVIDIA GeForce RTX 5090 Mobile", "RTX5090Laptop", 24),
        ("NVIDIA GeForce RTX 3080 Ti", "RTX3080Ti", 12),
        ("RTX 4070 Ti SUPER", "RTX4070TiSuper", 16),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB", 80),
        ("NVIDIA A100-SXM4-80GB MIG", "A100-80GB", 80),
        ("NVIDIA A100-PCIE-40GB", "A100", 40),
        ("A100", "A100", 40),
        ("NVIDIA H100 80GB HBM3", "H100", 80),
        ("H200 NVL", "H200", 141),
        ("NVIDIA H100 PCIe", "H100PCIe", 80),
        ("Tesla V100-SXM2-32GB", "V100", 32),
        ("NVIDIA L40S", "L40S", 48),
        ("NVIDIA L4", "L4", 24),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada", 48),
        ("A6000", "RTXA6000", 48),
        ("AMD Instinct MI300X", "MI300X", 192),
        ("Radeon RX 7900 XTX", "RX7900XTX", 24),
        ("7900 XTX", "RX7900XTX", 24),
        ("DGX Spark", "DGXSpark", 128),
        ("Apple M3 Max", "M3Max", 64),
        ("Apple M3", "M3", 16),
        ("MacBook Pro M4 Max 128 GB", "M4Max", 128),
        ("M3 Ultra 512", "M3Ultra", 512),
        ("M1 Max 16", "M1Max", 64),
        ("AMD Ryzen 9 7950X 16-Core Processor", "Ryzen9-7950X", 64),
        ("Intel(R) Core(TM) i9-14900K", "i9-14900K", 64),
        ("AMD EPYC 9654 96-Core Processor", "EPYC9654", 768),
        ("Intel Core i7-13700KF", "i7-13700", 64),
        ("i9 13900F", "i9-13900K", 64),
        ("Quadro RTX 8000", "RTX8000", 48),
        ("NVIDIA TITAN RTX", "TitanRTX", 24),
    ],
)
def test_devices_are_found_as_people_and_vendors_tools_name_them(text: str, name: str, memory_gb: int) -> None:
    found = find_device(text)
    assert found
    assert (found.name, found.memory) == (name, int(memory_gb * FREE_SHARE * GB))


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA GeForce RTX 3080 Ti Laptop GPU",
        "RTX 3070 Max-Q",
        "RTX 4090 D",
        "RTX 3080 Ti Super",
        "NVIDIA A100X",
        "GTX 9999",
        "Intel(R) Xeon(R) Processor",
        "0gb",
        "",
    ],
)
def test_products_that_are_none_of_them_are_not_taken_for_one(text: str) -> None:
    assert find_device(text) is None


@given(st.text(max_size=60))
def test_any_text_is_a_known_device_or_none(text: str) -> None:
    found = find_device(text)
    assert found is None or found.name in DEVICES


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_is_found_by_its_name(name: str) -> None:
    for text in (name, name.upper()):
        device = find_device(text)
        assert device
        assert device.name == name
        assert device.memory == int(DEVICES[name][0].memory_gb[0] * FREE_SHARE * GB)


def test_figures_are_those_that_were_read_from_the_data_sheets() -> None:
    """Whoever changes a figure, on purpose, writes down the new digest."""
    digest = hashlib.sha256(json.dumps({name: figures for name, (figures, _) in DEVICES.items()}).encode()).hexdigest()
    assert digest == "3e261d2fd360f162257400c8709bbc508f40034f1505eccf61f26d4341b50230"


def test_profile_has_the_figures_in_bytes_and_operations_and_leaves_some_memory() -> None:
    device = find_device("h200")
    assert device is not None
    assert (device.flops, device.bandwidth, device.memory) == (989e12, 4800e9, int(141 * FREE_SHARE * GB))
    assert 0.9 < device.memory / (141 * GB) < 1
