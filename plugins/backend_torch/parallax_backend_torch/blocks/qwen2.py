"""Qwen2 and Qwen2.5: Llama with biases, and in some models sliding windows."""

from __future__ import annotations

from parallax_backend_torch.config import FULL, SLIDING, Config
from parallax_backend_torch.decoder_layer import PlainLayer, WholeLayer, build_plain
from parallax_backend_torch.heads import Attention, Look, read_heads
from parallax_backend_torch.mlp import GatedMlp
from parallax_backend_torch.model import check_choice, read_shape, read_windows
from parallax_backend_torch.rope import make_rope
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights


class Qwen2:
    """See `parallax_backend_torch.model.Model`."""

    def __init__(self, config: Config) -> None:
        check_choice(config, "hidden_act", "silu")
        self.shape = read_shape(config)
        self._heads = read_heads(config)
        self._rope = make_rope(config, self._heads.width)
        self._windows = find_windows(config)

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values."""
        return self._heads.keep(self._windows[index])

    def build_attention(self, index: int, weights: Weights) -> Attention:
        """Build attention, with norms of queries and keys if the checkpoint has them."""
        return Attention(weights, self._heads, Look(rope=self._rope, window=self._windows[index], eps=self.shape.eps))

    def build_layer(self, index: int, weights: Weights) -> PlainLayer | WholeLayer:
        """Build a layer."""
        attention = self.build_attention(index, weights.within("self_attn"))
        return build_plain(
            weights, (self.shape.eps, self.shape.norm_offset), attention, GatedMlp(weights.within("mlp"))
        )


def find_windows(config: Config) -> tuple[int, ...]:
    """Return the window of each layer: from ``max_window_layers`` on, layers have one if the model uses windows."""
    num = config.count("num_hidden_layers")
    if not config.flag("use_sliding_window", default=False):
        return (0,) * num
    first = config.size("max_window_layers", num)
    return read_windows(config, [FULL if index < first else SLIDING for index in range(num)])
