"""Reads the memory available to MLX."""

from __future__ import annotations

from parallax_backend_mlx.runtime import mx
from parallax_core.api import Machine


def find_room() -> int:
    """Return the bytes that are free for weights and caches on the device in use."""
    if mx.default_device() != mx.Device(mx.gpu):
        room = Machine().free_memory()
        return int(mx.device_info()["memory_size"]) if room is None else room
    info = mx.device_info()
    limit = info.get("max_recommended_working_set_size", info.get("total_memory", info.get("memory_size", 0)))
    return max(0, int(limit) - mx.get_active_memory())
