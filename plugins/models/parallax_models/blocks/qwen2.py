"""Qwen2, Qwen2.5 and Qwen3: Llama, in some models with sliding windows, biases or norms."""

from __future__ import annotations

from parallax_models.blocks.decoder import Decoder


class Qwen2(Decoder):
    """See `parallax_backend_torch.api.Model`."""
