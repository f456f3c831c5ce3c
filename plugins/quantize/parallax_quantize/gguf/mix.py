"""The types that llama.cpp gives the tensors of a file, by the name of the whole."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BLOCK_SIZES = {"Q4_K": 256, "Q5_K": 256, "Q6_K": 256, "F16": 1, "BF16": 1}
"""Weights of a block, where it is not 32."""
NARROW = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What takes the place of a type for rows that are not in whole blocks of 256."""
BETTER = ("attn_v", "ffn_down", "ffn_down_exps")
"""The matrices that lose most by rounding."""
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


@dataclass(frozen=True, slots=True)
class Mix:
    """The types of a file."""

    number: int
    """``general.file_type``."""
    layers: str
    """Of the matrices of layers."""
    head: str
    """Of the output head, or of the embedding that it is."""
    better: str = ""
    """Of the values and the second matrices of MLPs in some layers; empty: as the others."""
    first: bool = False
    """Whether these layers are the first, and not about half of all."""


MIXES: Mapping[str, Mix] = {
    "BF16": Mix(32, "BF16", "BF16"),
    "F16": Mix(1, "F16", "F16"),
    "Q8_0": Mix(7, "Q8_0", "Q8_0"),
    "Q6_K": Mix(18, "Q6_K", "Q6_K"),
    "Q5_K_M": Mix(17, "Q5_K", "Q6_K", better="Q6_K"),
    "Q5_K_S": Mix(16, "Q5_K", "Q6_K"),
    "Q5_1": Mix(9, "Q5_1", "Q6_K"),
    "Q5_0": Mix(8, "Q5_0", "Q6_K"),
    "Q4_K_M": Mix(15, "Q4_K", "Q6_K", better="Q6_K"),
    "Q4_K_S": Mix(14, "Q4_K", "Q6_K", better="Q5_K", first=True),
    "Q4_1": Mix(3, "Q4_1", "Q6_K"),
    "Q4_0": Mix(2, "Q4_0", "Q6_K"),
}


def choose_type(mix: Mix, name: str, shape: Sequence[int], num_layers: int, *, is_tied: bool) -> str:
    """Return the type of a tensor.

    Args:
        mix: of the file.
        name: in the file.
        shape: as it is stored, the longest run last.
        num_layers: of the model.
        is_tied: whether the embedding is the output head.
    """
    if len(shape) < 2 or name.endswith((".bias", "ffn_gate_inp.weight")):  # noqa: PLR2004 -- norms, biases and routers
        return "F32"
    layer, kind = LAYER.fullmatch(name), mix.layers
    if name == "output.weight" or (name == "token_embd.weight" and is_tied):
        kind = mix.head
    elif layer is not None and mix.better and _is_better(mix, int(layer[1]), layer[2], num_layers):
        kind = mix.better
    return kind if shape[-1] % BLOCK_SIZES.get(kind, 32) == 0 else _narrow(kind, shape[-1])


def _is_better(mix: Mix, layer: int, matrix: str, num_layers: int) -> bool:
    eighth = num_layers // 8
    if mix.first:
        return (matrix == "attn_v" and layer < 4) or (matrix in BETTER[1:] and layer < eighth)  # noqa: PLR2004
    is_chosen = layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2  # noqa: PLR2004
    return matrix in BETTER and is_chosen


def _narrow(kind: str, width: int) -> str:
    found = NARROW.get(kind, kind)
    return found if width % BLOCK_SIZES.get(found, 32) == 0 else "F16"
