"""Typical figures of well-known devices, for planning with machines that are not there to be measured.

Memory, dense FP16 FLOPS with FP32 accumulation, and memory bandwidth are those of the makers' data sheets. The
efficiencies and overheads are typical of decoder layers; measured profiles replace all of them.
"""

from __future__ import annotations

import re

from parallax_core.api import DeviceProfile

GB = 10**9
FREE_SHARE = 0.92
"""The share of a device's memory that is free for a model."""
FLOPS_EFFICIENCY = 0.5
BANDWIDTH_EFFICIENCY = 0.75
STEP_S = 0.0005
LAYER_S = 0.00002

DEVICES = {
    "RTX3060": (12, 25.5, 360),
    "RTX3080": (10, 59.5, 760),
    "RTX3090": (24, 71, 936),
    "RTX4070": (12, 58.3, 504),
    "RTX4080": (16, 97.5, 717),
    "RTX4090": (24, 165.2, 1008),
    "RTX5090": (32, 209.5, 1792),
    "RX7900XTX": (24, 122.8, 960),
    "T4": (16, 65, 320),
    "V100": (16, 125, 900),
    "A10": (24, 125, 600),
    "L4": (24, 121, 300),
    "L40S": (48, 362, 864),
    "A100-40GB": (40, 312, 1555),
    "A100-80GB": (80, 312, 2039),
    "H100": (80, 989, 3350),
    "H200": (141, 989, 4800),
    "MI300X": (192, 1307, 5300),
    "M1": (16, 2.6, 68),
    "M2": (16, 3.6, 100),
    "M3": (16, 4.1, 100),
    "M4": (16, 4.3, 120),
    "M1Pro": (16, 5.2, 200),
    "M2Pro": (16, 6.8, 200),
    "M3Pro": (18, 7.4, 150),
    "M4Pro": (48, 8.5, 273),
    "M1Max": (64, 10.4, 400),
    "M2Max": (64, 13.6, 400),
    "M3Max": (64, 16.3, 400),
    "M4Max": (64, 18.4, 546),
    "M1Ultra": (64, 20.8, 800),
    "M2Ultra": (128, 27.2, 800),
    "M3Ultra": (256, 32.7, 819),
}
"""Memory in GB, TFLOPS and GB/s of each device."""


def find_device(name: str) -> DeviceProfile | None:
    """Return the typical profile of a device, whatever the case of its name; None if it is not known."""
    found = next((known for known in DEVICES if known.lower() == name.lower()), None)
    if found is None:
        return None
    memory_gb, tflops, bandwidth_gb_s = DEVICES[found]
    return DeviceProfile(
        memory=int(memory_gb * FREE_SHARE * GB),
        flops=tflops * 1e12,
        bandwidth=bandwidth_gb_s * 1e9,
        flops_efficiency=FLOPS_EFFICIENCY,
        bandwidth_efficiency=BANDWIDTH_EFFICIENCY,
        step_s=STEP_S,
        layer_s=LAYER_S,
        name=found,
    )


def recognise_product(product: str) -> DeviceProfile | None:
    """Return the typical profile of a product as its vendor's tools name it, such as ``NVIDIA GeForce RTX 4090``.

    Returns None if its figures are not known. A laptop's GPU is not the one of the same number for desktops.
    """
    words = re.findall(r"[a-z0-9]+", product.lower())
    if {"laptop", "mobile", "max-q"} & set(words):
        return None
    runs = {"".join(words[start:stop]) for start in range(len(words)) for stop in range(start + 1, len(words) + 1)}
    for name in sorted(DEVICES, key=len, reverse=True):
        model, _, size = name.lower().partition("-")
        if model in runs and (not size or size in runs):
            return find_device(name)
    return None
