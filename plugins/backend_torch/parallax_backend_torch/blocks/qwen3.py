"""Qwen3, dense: Qwen2 without biases, and with a norm of each query and key."""

from __future__ import annotations

from parallax_backend_torch.blocks.qwen2 import Qwen2


class Qwen3(Qwen2):
    """See `parallax_backend_torch.model.Model`."""
