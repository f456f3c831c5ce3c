"""Maps a llama's tensors to the standard layout: names, order of rows, values as floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from parallax_formats.gguf import GgufFile, TensorInfo, damaged, read_chunks
from parallax_source_pypi.shape import LlamaShape, refuse

Floats = npt.NDArray[np.float16] | npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TargetTensor:
    """A tensor the model must have."""

    source: str
    """Its name in the GGUF file."""
    target: str
    """Its name in the standard layout."""
    shape: tuple[int, ...]
    num_heads: int = 0
    """The number of heads within which its rows are interleaved; 0: they are in order."""


def list_slots(shape: LlamaShape) -> Iterator[TargetTensor]:
    """Yield the tensors a model of this shape has."""
    table = (shape.vocab_size, shape.hidden_size)
    yield TargetTensor("token_embd.weight", "model.embed_tokens.weight", table)
    for layer in range(shape.num_layers):
        yield from list_layer(shape, layer)
    yield TargetTensor("output_norm.weight", "model.norm.weight", (shape.hidden_size,))
    if not shape.tied:
        yield TargetTensor("output.weight", "lm_head.weight", table)


def list_layer(shape: LlamaShape, layer: int) -> Iterator[TargetTensor]:
    """Yield the tensors of one layer."""
    hidden, inner = shape.hidden_size, shape.inner_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    source, target = f"blk.{layer}.", f"model.layers.{layer}."
    yield TargetTensor(source + "attn_norm.weight", target + "input_layernorm.weight", (hidden,))
    yield TargetTensor(source + "attn_q.weight", target + "self_attn.q_proj.weight", (queries, hidden), shape.num_heads)
    yield TargetTensor(source + "attn_k.weight", target + "self_attn.k_proj.weight", (keys, hidden), shape.num_kv_heads)
    yield TargetTensor(source + "attn_v.weight", target + "self_attn.v_proj.weight", (keys, hidden))
    yield TargetTensor(source + "attn_output.weight", target + "self_attn.o_proj.weight", (hidden, queries))
    yield TargetTensor(source + "ffn_norm.weight", target + "post_attention_layernorm.weight", (hidden,))
    yield TargetTensor(source + "ffn_gate.weight", target + "mlp.gate_proj.weight", (inner, hidden))
    yield TargetTensor(source + "ffn_up.weight", target + "mlp.up_proj.weight", (inner, hidden))
    yield TargetTensor(source + "ffn_down.weight", target + "mlp.down_proj.weight", (hidden, inner))


def match_slots(shape: LlamaShape, tensors: Mapping[str, TensorInfo]) -> list[TargetTensor]:
    """Return the slots of the model, one for each tensor of the file.

    Raises:
        ParallaxError: if a tensor is missing or has another shape.
        Unsupported: if there is a tensor that a plain llama lacks, such as an expert's or a table of rope factors.
    """
    slots = []
    for slot in list_slots(shape):
        check_slot(slot, tensors)
        slots.append(slot)
    extra = tensors.keys() - {slot.source for slot in slots}
    if extra:
        raise refuse(f"a llama with the tensor {min(extra)!r}")
    return slots


def check_slot(slot: TargetTensor, tensors: Mapping[str, TensorInfo]) -> None:
    """Check that the file has the tensor, in the shape the model needs."""
    info = tensors.get(slot.source)
    if info is None:
        raise damaged(f"it has no tensor {slot.source!r}")
    if info.shape != slot.shape:
        raise damaged(f"the tensor {slot.source!r} has the shape {list(info.shape)}, not {list(slot.shape)}")


def load_floats(gguf: GgufFile, slot: TargetTensor) -> Floats:
    """Return a tensor of ``slot.shape``: float16, or float32 if float16 cannot hold its largest value.

    Raises:
        ParallaxError: if a value is infinite or not a number.
        Unsupported: if the gguf package does not read the type.
    """
    info = gguf.tensors[slot.source]
    return unpack_rows(sort_rows(gguf.read_rows(info), slot.num_heads), info.kind, slot)


def sort_rows(rows: npt.NDArray[np.uint8], num_heads: int) -> npt.NDArray[np.uint8]:
    """Reorder the query and key rows of a llama from the order of GGUF files to the standard one.

    In a GGUF file, rope rotates neighbouring rows (0, 1), (2, 3), ... of a head; in the standard layout it rotates rows
    i and i + head_dim / 2. Rows are packed one by one, so packed rows can be moved.
    """
    if not num_heads:
        return rows
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def unpack_rows(rows: npt.NDArray[np.uint8], kind: GGMLQuantizationType, slot: TargetTensor) -> Floats:
    """Unpack rows a chunk at a time into an array of ``slot.shape``."""
    narrow = np.empty((len(rows), slot.shape[-1]), np.float16)
    for start, values in unpack_chunks(rows, kind, slot):
        if np.abs(values).max() > np.finfo(np.float16).max:
            return widen_rows(rows, kind, slot)
        narrow[start : start + len(values)] = values
    return narrow.reshape(slot.shape)


def widen_rows(rows: npt.NDArray[np.uint8], kind: GGMLQuantizationType, slot: TargetTensor) -> npt.NDArray[np.float32]:
    """Unpack rows into float32."""
    return np.concatenate([values for _, values in unpack_chunks(rows, kind, slot)]).reshape(slot.shape)


def unpack_chunks(
    rows: npt.NDArray[np.uint8], kind: GGMLQuantizationType, slot: TargetTensor
) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yield (first row, float32 values of shape (rows, width))."""
    for start, values in read_chunks(rows, kind, slot.shape[-1]):
        if not np.isfinite(values).all():
            raise damaged(f"the tensor {slot.source!r} has values that are not finite")
        yield start, values
