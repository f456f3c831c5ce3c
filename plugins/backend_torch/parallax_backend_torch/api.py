"""Building blocks of layers, for the ``blocks`` that a model's adapter has for this backend.

`ModelSpec.blocks` names for ``torch`` a class, or a function, that is called with a `Config` and returns a `Model`.
Names in this module keep their meaning until the minor version of this distribution changes.
"""

from __future__ import annotations

from parallax_backend_torch.arithmetic import Norm, attend, rotate, store
from parallax_backend_torch.config import FULL, SLIDING, Config
from parallax_backend_torch.decoder_layer import build_plain
from parallax_backend_torch.heads import Attention, Heads, Look, read_heads
from parallax_backend_torch.kernels.attention import Pool, Rule
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.mlp import GatedMlp
from parallax_backend_torch.model import Layer, Model, Shape, check_choice, read_shape, read_windows
from parallax_backend_torch.rope import Rope, make_rope
from parallax_backend_torch.step import LayerCache, SlotMapping, Slots, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights

__all__ = [
    "FULL",
    "SLIDING",
    "Attention",
    "CacheSpec",
    "Config",
    "GatedMlp",
    "Heads",
    "Layer",
    "LayerCache",
    "Look",
    "Model",
    "Norm",
    "Packed",
    "Pool",
    "Rope",
    "Rule",
    "Shape",
    "SlotMapping",
    "Slots",
    "Step",
    "Weights",
    "attend",
    "build_plain",
    "check_choice",
    "make_rope",
    "read_heads",
    "read_shape",
    "read_windows",
    "rotate",
    "store",
]
