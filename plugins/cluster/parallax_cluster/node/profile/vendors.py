"""Reads the output of GPU vendors' tools, leaving out unreadable parts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MIB = 2**20
UNITS = {"B": 1, "KB": 2**10, "MB": MIB, "GB": 2**30, "TB": 2**40}
MOST_BYTES = 2**50
"""More is not believed."""
MOST_GPUS = 64
MOST_NAME = 100
MOST_DIGITS = 16


class Gpu(NamedTuple):
    """A GPU."""

    name: str
    total: int
    """Bytes of memory; 0: it shares the main memory, or does not say."""
    free: int
    """Bytes that are free; 0: unknown."""


def parse_nvidia(text: str) -> list[Gpu]:
    """Read ``nvidia-smi --query-gpu=name,memory.total,memory.free --format=csv,noheader,nounits``, in MiB.

    GPUs that share the main memory, such as GB10, have ``[N/A]`` in place of numbers.
    """
    rows = (line.rsplit(",", 2) for line in text.splitlines())
    return _keep(Gpu(row[0], *(_read_size(each, MIB) for each in row[1:])) for row in rows if len(row) == 3)  # noqa: PLR2004 -- the columns


def parse_rocm(text: str) -> list[Gpu]:
    """Read ``rocm-smi --showproductname --showmeminfo vram --json``, in bytes, as text."""
    cards = _read_json(text)
    if not isinstance(cards, Mapping):
        return []
    return _keep(_read_card(card) for name, card in cards.items() if name.startswith("card") and isinstance(card, dict))


def _read_card(card: Mapping[str, Any]) -> Gpu:
    names = (card.get(key) for key in ("Card Series", "Card series", "Device Name", "Card Model", "Card model"))
    name = next((each for each in names if isinstance(each, str) and each), "")
    total = _read_size(card.get("VRAM Total Memory (B)"), 1)
    used = _read_size(card.get("VRAM Total Used Memory (B)"), 1)
    return Gpu(name, total, max(0, total - used))


def parse_amd_smi(text: str) -> list[Gpu]:
    """Read ``amd-smi static --asic --vram --json``: a list, or since ROCm 7 a list in ``gpu_data``.

    It does not tell how much of the memory is free.
    """
    cards = _read_json(text)
    if isinstance(cards, Mapping):
        cards = cards.get("gpu_data", [cards])
    return _keep(_read_asic(card) for card in cards if isinstance(card, dict)) if isinstance(cards, list) else []


def _read_asic(card: Mapping[str, Any]) -> Gpu:
    asic, vram = card.get("asic"), card.get("vram")
    name = asic.get("market_name") if isinstance(asic, Mapping) else ""
    size = (vram.get("size") or vram.get("vram_size")) if isinstance(vram, Mapping) else None
    if not isinstance(size, Mapping):
        return Gpu(name if isinstance(name, str) else "", _read_size(size, MIB), 0)
    unit = UNITS.get(str(size.get("unit")), MIB)
    return Gpu(name if isinstance(name, str) else "", _read_size(size.get("value"), unit), 0)


def parse_apple(text: str) -> list[Gpu]:
    """Read ``system_profiler SPDisplaysDataType -json``. The GPU of Apple silicon shares the main memory."""
    found = _read_json(text)
    cards = found.get("SPDisplaysDataType") if isinstance(found, Mapping) else None
    if not isinstance(cards, list):
        return []
    names = (card.get("sppci_model") or card.get("_name") for card in cards if isinstance(card, Mapping))
    return _keep(Gpu(name, 0, 0) for name in names if isinstance(name, str) and name.startswith("Apple "))


def parse_vm_stat(text: str) -> int | None:
    """Return the bytes that programs can take on macOS, from ``vm_stat``; None if it cannot be read.

    These are the pages that are free, inactive, speculative or purgeable.
    """
    size = re.search(r"page size of (\d{1,7}) bytes", text)
    if size is None:
        return None
    kinds = re.findall(r"^Pages (free|inactive|speculative|purgeable):\s+(\d{1,15})\.?$", text, re.MULTILINE)
    return min(MOST_BYTES, int(size[1]) * sum(int(count) for _, count in kinds)) if kinds else None


def _keep(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return the GPUs with a name, their texts and numbers within bounds."""
    kept = []
    for gpu in gpus:
        name = "".join(char for char in gpu.name if char.isprintable()).strip()[:MOST_NAME]
        if name:
            kept.append(Gpu(name, gpu.total, min(gpu.free, gpu.total)))
    return kept[:MOST_GPUS]


def _read_size(value: object, unit: int) -> int:
    """Return a number of bytes; 0 if it is no number, or not believed."""
    text = str(value).strip()
    if isinstance(value, bool) or len(text) > MOST_DIGITS or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return 0
    size = int(float(text) * unit)
    return size if size <= MOST_BYTES else 0


def _read_json(text: str) -> Any:  # noqa: ANN401 -- of any type, which its readers check
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
