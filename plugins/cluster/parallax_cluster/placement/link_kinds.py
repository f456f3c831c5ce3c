"""Typical figures of well-known kinds of links."""

from __future__ import annotations

import re

KINDS = {
    "internet": (30.0, 50.0),
    "lte": (50.0, 30.0),
    "5g": (25.0, 150.0),
    "powerline": (5.0, 150.0),
    "wifi": (4.0, 300.0),
    "wifi6": (3.0, 800.0),
    "wifi7": (2.0, 2000.0),
    "100mbe": (0.5, 94.0),
    "1gbe": (0.3, 940.0),
    "2.5gbe": (0.3, 2350.0),
    "5gbe": (0.3, 4700.0),
    "10gbe": (0.2, 9400.0),
    "25gbe": (0.1, 23500.0),
    "40gbe": (0.1, 37600.0),
    "100gbe": (0.1, 94000.0),
    "200gbe": (0.1, 188000.0),
    "400gbe": (0.1, 376000.0),
    "thunderbolt3": (0.3, 16000.0),
    "thunderbolt4": (0.3, 16000.0),
    "thunderbolt5": (0.2, 40000.0),
    "pcie": (0.02, 100000.0),
    "nvlink": (0.01, 1000000.0),
}
"""Milliseconds of a round trip of TCP, and Mbit/s that it carries, by name; of the last two those of copies."""


OTHER_NAMES = {
    "wan": "internet",
    "vpn": "internet",
    "tailscale": "internet",
    "4g": "lte",
    "wlan": "wifi",
    "wifi5": "wifi",
    "lan": "1gbe",
    "ethernet": "1gbe",
    "gigabit": "1gbe",
    "fastethernet": "100mbe",
    "infiniband": "100gbe",
    "usb4": "thunderbolt4",
    "thunderbolt": "thunderbolt4",
}
"""What people call them besides."""


def find_kind(text: str) -> tuple[float, float] | None:
    """Return the round trip in ms and the Mbit/s of a kind such as ``wifi``, ``10 GbE`` or ``Thunderbolt 5``."""
    name = re.sub(r"[ _-]", "", text.lower())
    name = re.sub(r"^([\d.]+)g(b|bit|bit/s|bps|ige|bitethernet)$", r"\1gbe", name)
    name = re.sub(r"^tb(?=\d)", "thunderbolt", name)
    return KINDS.get(OTHER_NAMES.get(name, name))
