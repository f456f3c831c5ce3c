"""Building blocks of layers, for the ``blocks`` that a model's adapter has for this backend.

`ModelSpec.blocks` names for ``torch`` a class, or a function, that is called with a `Config` and returns a `Model`.
Names in this module keep their meaning until the minor version of this distribution changes.
"""

from __future__ import annotations

from parallax_backend_torch.arithmetic import Norm, attend, rotate, store
from parallax_backend_torch.block_choice import choose_blocks
from parallax_backend_torch.compressed import (
    Compressor,
    CompressSizes,
    EntryIndex,
    Seen,
    attend_both,
    rotate_pairs,
    see_window,
)
from parallax_backend_torch.config import FULL, SLIDING, Config
from parallax_backend_torch.decoder import Decoder
from parallax_backend_torch.decoder_layer import NormedLayer, PlainLayer, WholeLayer, build_normed, build_plain
from parallax_backend_torch.delta_net import DeltaNet, NetSizes
from parallax_backend_torch.experts import Expert, Experts, GroupRoute, SoftmaxRoute, build_experts
from parallax_backend_torch.heads import Attention, Heads, Look, read_heads
from parallax_backend_torch.hyper import HyperConnection, HyperHead, HyperLayer, HyperPart, HyperRule
from parallax_backend_torch.kernels.attention import Pool, Rule
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.kimi_delta import KimiDelta, KimiSizes
from parallax_backend_torch.latent import LatentAttention, LatentInput, LatentSizes, multiply_heads
from parallax_backend_torch.mamba import Mamba, MambaSizes
from parallax_backend_torch.mlp import GatedMlp, Looker, Mixer, SquaredMlp
from parallax_backend_torch.model import Layer, Model, Shape, check_choice, read_shape, read_windows
from parallax_backend_torch.mxfp4 import widen_blocks
from parallax_backend_torch.ngrams import NgramHashes, SplitTable
from parallax_backend_torch.rope import Rope, make_rope, read_rope, scale_magnitude, split_pairs
from parallax_backend_torch.short_conv import ShortConv, convolve, read_kernel
from parallax_backend_torch.sparse import (
    Choice,
    SeenRow,
    attend_chosen,
    find_longest,
    list_rows,
    split_tokens,
)
from parallax_backend_torch.step import Carried, LayerCache, SlotMapping, Slots, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.stream_gate import StreamGate, StreamNorm
from parallax_backend_torch.weights import MappedTable, Weights

__all__ = [
    "FULL",
    "SLIDING",
    "Attention",
    "CacheSpec",
    "Carried",
    "Choice",
    "CompressSizes",
    "Compressor",
    "Config",
    "Decoder",
    "DeltaNet",
    "EntryIndex",
    "Expert",
    "Experts",
    "GatedMlp",
    "GroupRoute",
    "Heads",
    "HyperConnection",
    "HyperHead",
    "HyperLayer",
    "HyperPart",
    "HyperRule",
    "KimiDelta",
    "KimiSizes",
    "LatentAttention",
    "LatentInput",
    "LatentSizes",
    "Layer",
    "LayerCache",
    "Look",
    "Looker",
    "Mamba",
    "MambaSizes",
    "MappedTable",
    "Mixer",
    "Model",
    "NetSizes",
    "NgramHashes",
    "Norm",
    "NormedLayer",
    "Packed",
    "PlainLayer",
    "Pool",
    "Rope",
    "Rule",
    "Seen",
    "SeenRow",
    "Shape",
    "ShortConv",
    "SlotMapping",
    "Slots",
    "SoftmaxRoute",
    "SplitTable",
    "SquaredMlp",
    "Step",
    "StreamGate",
    "StreamNorm",
    "Weights",
    "WholeLayer",
    "attend",
    "attend_both",
    "attend_chosen",
    "build_experts",
    "build_normed",
    "build_plain",
    "check_choice",
    "choose_blocks",
    "convolve",
    "find_longest",
    "list_rows",
    "make_rope",
    "multiply_heads",
    "read_heads",
    "read_kernel",
    "read_rope",
    "read_shape",
    "read_windows",
    "rotate",
    "rotate_pairs",
    "scale_magnitude",
    "see_window",
    "split_pairs",
    "split_tokens",
    "store",
    "widen_blocks",
]
