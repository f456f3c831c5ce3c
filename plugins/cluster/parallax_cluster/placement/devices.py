"""Finds the typical figures of devices, for planning with machines that are not there to be measured."""

from __future__ import annotations

import re

from parallax_cluster.placement.device_table import KINDS
from parallax_core.api import DeviceProfile

GB = 10**9
FREE_SHARE = 0.92
"""The share of a device's memory that is free for a model."""
DEVICES = {name: (figures, kind.efficiency) for kind in KINDS for name, figures in kind.list_devices()}
"""The data sheet of each device, and what layers reach."""
FILLERS = frozenset(
    [
        "nvidia",
        "geforce",
        "tesla",
        "quadro",
        "amd",
        "intel",
        "apple",
        "r",
        "tm",
        "core",
        "processor",
        "cpu",
        "gpu",
        "gold",
        "platinum",
    ]
)
"""What vendors' tools have in and around a product's name."""
OTHERS = frozenset(["ti", "super", "xt", "xtx", "gre", "pro", "max", "ultra", "laptop", "maxq", "ada", "d"])
"""What follows a product's name in the name of another one."""
SERIES = ("GTX", "RTX", "RX")
"""What people leave out: ``4090``, ``7900 XTX``."""


def _squash(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_BY_WORDS = {
    **{_squash(name).removesuffix("k"): name for name in DEVICES if re.match(r"i\d-", name)},
    **{_squash(name.removeprefix(series)): name for name in DEVICES for series in SERIES if name.startswith(series)},
    **{_squash(name): name for name in DEVICES},
}


def find_device(text: str) -> DeviceProfile | None:
    """Return the typical profile of a device as people and vendors' tools name it; None if it is not known.

    Args:
        text: such as ``RTX 4090``, ``NVIDIA GeForce RTX 4090``, ``M3 Ultra 512`` or ``A100-SXM4-80GB``; a size of
            memory counts in place of the usual one.
    """
    plain = re.sub(r"(\d) gb\b", r"\1gb", text.lower().replace("max-q", "maxq").replace("mobile", "laptop"))
    plain = re.sub(r"(i[3579][- ]?\d{5})(kf|ks|k|f)\b", r"\1", plain)  # processors that differ in little else
    words = [word for word in re.findall(r"[a-z0-9]+", plain) if word not in FILLERS]
    if (found := _find_name(words)) is None:
        return None
    size = _find_size(words, DEVICES[found][0].memory_gb)
    name = next((each for each in DEVICES if size and each == f"{found}-{size:g}GB"), found)
    figures, efficiency = DEVICES[name]
    return DeviceProfile(
        memory=int((size or figures.memory_gb[0]) * FREE_SHARE * GB),
        flops=figures.tflops * 1e12,
        bandwidth=figures.bandwidth_gb_s * 1e9,
        name=name,
        **efficiency._asdict(),
    )


def _find_name(words: list[str]) -> str | None:
    """Return the device that the longest run of words names, unless another word makes it a product that is unknown."""
    runs = ((start, stop) for start in range(len(words)) for stop in range(start + 1, min(start + 5, len(words)) + 1))
    named = [(stop, name) for start, stop in runs if (name := _BY_WORDS.get("".join(words[start:stop])))]
    if not named:
        return None
    stop, found = max(named, key=lambda each: len(each[1]))
    rest = {*words[stop : stop + 1], *({"laptop", "maxq"} & set(words))}
    return None if rest & OTHERS and not found.endswith("Laptop") else found


def _find_size(words: list[str], known: tuple[float, ...]) -> float | None:
    """Return the GB of memory among the words: ``80gb`` anywhere, or a size that is known as the last word."""
    for word in words:
        if size := re.fullmatch(r"(\d{1,4})gb?", word):
            return float(size[1]) or None
    return next((size for size in known if words[-1] == f"{size:g}"), None)
