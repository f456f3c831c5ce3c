"""Qwen2, Qwen2.5 and Qwen3: Llama, in some models with sliding windows, biases or norms."""

from __future__ import annotations

from parallax_backend_torch.api import Config, Decoder
from parallax_models.qwen2 import ADAPTER


class Qwen2(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.windows = ADAPTER.list_windows(config)
