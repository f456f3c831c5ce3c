"""Building blocks of layers, for the ``blocks`` that a model's adapter has for this backend.

`ModelSpec.blocks` names for ``torch`` a class, or a function, that is called with a `Config` and returns a `Model`.
Names in this module keep their meaning until the minor version of this distribution changes.
"""

from __future__ import annotations

from parallax_backend_torch.arithmetic import Norm, attend, rotate, store
from parallax_backend_torch.block_choice import choose_blocks
from parallax_backend_torch.chosen_attention import ChosenAttention
from parallax_backend_torch.compressed import Compressor, CompressSizes, EntryIndex
from parallax_backend_torch.compressed_attention import AttentionSizes, CompressedAttention, Entries
from parallax_backend_torch.config import FULL, SLIDING, Config
from parallax_backend_torch.decoder import Decoder
from parallax_backend_torch.decoder_layer import NormedLayer, PlainLayer, WholeLayer, build_normed, build_plain
from parallax_backend_torch.delta_net import DeltaNet, NetSizes
from parallax_backend_torch.experts import (
    NUMBERED,
    Expert,
    Experts,
    GroupRoute,
    SharedExpert,
    SoftmaxRoute,
    build_experts,
    build_groups,
    build_shared,
    find_mixtral,
    name_experts,
)
from parallax_backend_torch.heads import Attention, Heads, Look, Warmth, read_heads
from parallax_backend_torch.hyper import (
    HyperConnection,
    HyperHead,
    HyperLayer,
    HyperPart,
    HyperRule,
    StreamPart,
    build_connections,
    build_parts,
    name_factors,
)
from parallax_backend_torch.kernels.attention import Pool, Rule
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.kimi_delta import KimiDelta, KimiSizes
from parallax_backend_torch.latent import LatentAttention, LatentInput, LatentSizes, multiply_heads
from parallax_backend_torch.mamba import Mamba, MambaSizes
from parallax_backend_torch.mlp import Clamp, ClampedMlp, GatedMlp, Looker, Mixer, SquaredMlp, build_clamped
from parallax_backend_torch.model import Layer, Model, Shape, check_choice, read_shape, read_windows
from parallax_backend_torch.mxfp4 import MicroRows
from parallax_backend_torch.ngrams import NgramHashes, NgramPart, SplitTable
from parallax_backend_torch.rope import Rope, make_rope, read_rope, scale_magnitude, split_pairs
from parallax_backend_torch.short_conv import ShortConv, convolve, read_kernel
from parallax_backend_torch.sparse import (
    Choice,
    SeenRow,
    attend_chosen,
    find_longest,
    list_rows,
    score_keys,
    split_tokens,
)
from parallax_backend_torch.step import Carried, LayerCache, SlotMapping, Slots, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.stream_gate import StreamGate, StreamNorm
from parallax_backend_torch.token_index import (
    CHOSEN,
    ChoosingLayer,
    IndexedAttention,
    IndexSizes,
    TokenIndex,
    keep_indexed,
)
from parallax_backend_torch.weights import MappedTable, Weights

__all__ = [
    "CHOSEN",
    "FULL",
    "NUMBERED",
    "SLIDING",
    "Attention",
    "AttentionSizes",
    "CacheSpec",
    "Carried",
    "Choice",
    "ChoosingLayer",
    "ChosenAttention",
    "Clamp",
    "ClampedMlp",
    "CompressSizes",
    "CompressedAttention",
    "Compressor",
    "Config",
    "Decoder",
    "DeltaNet",
    "Entries",
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
    "IndexSizes",
    "IndexedAttention",
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
    "MicroRows",
    "Mixer",
    "Model",
    "NetSizes",
    "NgramHashes",
    "NgramPart",
    "Norm",
    "NormedLayer",
    "Packed",
    "PlainLayer",
    "Pool",
    "Rope",
    "Rule",
    "SeenRow",
    "Shape",
    "SharedExpert",
    "ShortConv",
    "SlotMapping",
    "Slots",
    "SoftmaxRoute",
    "SplitTable",
    "SquaredMlp",
    "Step",
    "StreamGate",
    "StreamNorm",
    "StreamPart",
    "TokenIndex",
    "Warmth",
    "Weights",
    "WholeLayer",
    "attend",
    "attend_chosen",
    "build_clamped",
    "build_connections",
    "build_experts",
    "build_groups",
    "build_normed",
    "build_parts",
    "build_plain",
    "build_shared",
    "check_choice",
    "choose_blocks",
    "convolve",
    "find_longest",
    "find_mixtral",
    "keep_indexed",
    "list_rows",
    "make_rope",
    "multiply_heads",
    "name_experts",
    "name_factors",
    "read_heads",
    "read_kernel",
    "read_rope",
    "read_shape",
    "read_windows",
    "rotate",
    "scale_magnitude",
    "score_keys",
    "split_pairs",
    "split_tokens",
    "store",
]
