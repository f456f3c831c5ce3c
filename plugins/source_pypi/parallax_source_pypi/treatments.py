"""Makes tensors of a model folder from those of a GGUF file: the order of values, and their form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from parallax_formats.gguf import PLAIN, TensorInfo, are_finite, damaged, read_chunks
from parallax_source_pypi.tensors import Slot, Source

Array = npt.NDArray[np.float16] | npt.NDArray[np.float32] | npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
MATRIX = 2
NIBBLE = 15


@dataclass(frozen=True, slots=True)
class Converted:
    """A tensor of the model folder; bfloat16 is uint16 with `kind` BF16."""

    name: str
    values: Array
    kind: str = ""
    """The type of its blocks, if the values are these."""


def convert_slot(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the tensors of the folder that one of the file becomes.

    Raises:
        ParallaxError: if a value is infinite or not a number.
        Unsupported: if the gguf package does not read the type.
    """
    yield from TREATMENTS[slot.row.treatment](slot, source)


def keep(slot: Slot, source: Source, rows: npt.NDArray[np.uint8], shape: tuple[int, ...], name: str) -> Converted:
    """Return stored rows as a tensor: as they are, or as floats in ``shape`` if the folder has no blocks."""
    kind = slot.info.kind
    if source.keeps_blocks and kind == GGMLQuantizationType.F32:
        return Converted(name, check(slot, rows.view(np.float32)).reshape(shape))
    if not source.keeps_blocks or (kind not in PLAIN and len(shape) != MATRIX):
        return Converted(name, narrow(slot, rows, shape[-1]).reshape(shape))
    if kind == GGMLQuantizationType.F16:
        return Converted(name, check(slot, rows.view(np.float16)).reshape(shape))
    if not are_finite(rows, kind):
        raise not_finite(slot)
    if kind == GGMLQuantizationType.BF16:
        return Converted(name, rows.view(np.uint16).reshape(shape), kind.name)
    return Converted(name, np.ascontiguousarray(rows), kind.name)


def widen(slot: Slot, source: Source, info: TensorInfo | None = None) -> npt.NDArray[np.float32]:
    """Return a tensor in float32, in its shape."""
    info = info or slot.info
    chunks = [values for _, values in read_chunks(source.file.read_rows(info), info.kind, info.shape[-1])]
    whole = np.concatenate(chunks)
    check(slot, whole)
    return whole.reshape(info.shape)


def narrow(slot: Slot, rows: npt.NDArray[np.uint8], width: int) -> Array:
    """Return rows as float16, or as float32 if float16 cannot hold the largest value."""
    made = np.empty((len(rows), width), np.float16)
    for start, values in read_chunks(rows, slot.info.kind, width):
        check(slot, values)
        if np.abs(values).max() > np.finfo(np.float16).max:
            return np.concatenate([check(slot, part) for _, part in read_chunks(rows, slot.info.kind, width)])
        made[start : start + len(values)] = values
    return made


def check(slot: Slot, values: Array) -> Array:
    """Return the values, if all are finite."""
    if not np.isfinite(values).all():
        raise not_finite(slot)
    return values


def not_finite(slot: Slot) -> Exception:
    """Return the error for infinities, and for what is not a number."""
    return damaged(f"the tensor {slot.info.name!r} has values that are not finite")


def copy(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the tensor as it is."""
    yield keep(slot, source, source.file.read_rows(slot.info), slot.info.shape, slot.name())


def turn(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield query or key rows in the standard order.

    For some architectures, rope rotates neighbouring rows (0, 1), (2, 3), ... of a head; in the standard layout it
    rotates rows i and i + head / 2. Rows are packed one by one, so packed rows can be moved.
    """
    shape = slot.info.shape
    rows = source.file.read_rows(slot.info)
    if slot.suffix == "bias":
        values = widen(slot, source)
        rows = np.ascontiguousarray(values)[:, None].view(np.uint8)
    pairs = rows.reshape(-1, source.sizes["head"] // 2, 2, rows.shape[-1])
    turned = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
    if slot.suffix == "bias":
        yield Converted(slot.name(), turned.view(np.float32).reshape(shape))
    else:
        yield keep(slot, source, turned, shape, slot.name())


def less_1(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield a norm to which the model adds 1, as llama.cpp stores it: with 1 added."""
    yield Converted(slot.name(), widen(slot, source) - np.float32(1))


def split(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the matrix of each expert."""
    rows, shape = source.file.read_rows(slot.info), slot.info.shape
    height = len(rows) // shape[0]
    for number in range(shape[0]):
        part = rows[number * height : (number + 1) * height]
        yield keep(slot, source, part, shape[1:], slot.name(number))


def add_axis(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield a vector as a matrix of one row."""
    yield Converted(slot.name(), widen(slot, source)[None])


def add_middle(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the kernels of a convolution, [channels, 1, width]."""
    yield Converted(slot.name(), widen(slot, source)[:, None])


def strip(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield a tensor that is a parameter of its own in transformers."""
    yield Converted(slot.name().removesuffix(f".{slot.suffix}"), widen(slot, source))


def strip_row(slot: Slot, source: Source) -> Iterator[Converted]:
    """The same, as a matrix of one row."""
    yield Converted(slot.name().removesuffix(f".{slot.suffix}"), widen(slot, source)[None])


def join_latent(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the projection from latents to keys and values, of which llama.cpp stores the keys' part transposed."""
    other = source.file.tensors.get(slot.info.name.replace("attn_k_b", "attn_v_b"))
    if other is None:
        raise damaged(f"it has {slot.info.name!r}, and no 'attn_v_b'")
    keys, values = widen(slot, source).swapaxes(1, 2), widen(slot, source, other)
    if keys.shape[0] != values.shape[0] or keys.shape[2] != values.shape[2]:
        raise damaged(f"{slot.info.name!r} and {other.name!r} do not fit together")
    yield Converted(slot.name(), np.concatenate([keys, values], axis=1).reshape(-1, keys.shape[2]))


def join_halves(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield gate and up of all experts of GPT-OSS, row by row in turn."""
    other = source.file.tensors.get(slot.info.name.replace("_gate_", "_up_"))
    if other is None or other.shape != slot.info.shape or other.kind != slot.info.kind:
        raise damaged(f"it has no tensor like {slot.info.name!r} for the other half")
    stacked = [source.file.read_rows(info) for info in (slot.info, other)]
    name = slot.name().removesuffix(f".{slot.suffix}")
    if slot.suffix == "bias":
        both = np.stack([widen(slot, source), widen(slot, source, other)], axis=-1)
        yield Converted(f"{name}_bias", both.reshape(len(both), -1))
    elif slot.info.kind == GGMLQuantizationType.MXFP4:
        rows = np.stack(stacked, axis=1).reshape(slot.info.shape[0], -1, stacked[0].shape[-1])
        yield from repack(rows, name)
    else:
        both = np.stack([widen(slot, source), widen(slot, source, other)], axis=2)
        wide = both.reshape(len(both), -1, both.shape[-1])
        yield Converted(name, np.ascontiguousarray(wide.swapaxes(1, 2)))


def turn_experts(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the way back of all experts of GPT-OSS."""
    name = slot.name().removesuffix(f".{slot.suffix}")
    if slot.suffix == "bias":
        yield Converted(f"{name}_bias", widen(slot, source))
    elif slot.info.kind == GGMLQuantizationType.MXFP4:
        yield from repack(source.file.read_rows(slot.info).reshape(*slot.info.shape[:2], -1), name)
    else:
        yield Converted(name, np.ascontiguousarray(widen(slot, source).swapaxes(1, 2)))


def repack(rows: npt.NDArray[np.uint8], name: str) -> Iterator[Converted]:
    """Yield MXFP4 as GPT-OSS is published: blocks [experts, rows, groups, 16], and scales [experts, rows, groups].

    A block of a GGUF file has its scale, and then the numbers 0 and 16, 1 and 17, ...; here 0 and 1 share a byte.
    """
    groups = rows.reshape(*rows.shape[:-1], -1, 17)
    codes = np.concatenate([groups[..., 1:] & NIBBLE, groups[..., 1:] >> 4], axis=-1)
    yield Converted(f"{name}_blocks", codes[..., 0::2] | codes[..., 1::2] << 4)
    yield Converted(f"{name}_scales", np.ascontiguousarray(groups[..., 0]))


def skip(slot: Slot, source: Source) -> Iterator[Converted]:  # noqa: ARG001 -- as the others
    """Yield nothing: the tensor was joined with another."""
    yield from ()


TREATMENTS: Mapping[str, Callable[[Slot, Source], Iterator[Converted]]] = {
    "": copy,
    "turn": turn,
    "less1": less_1,
    "split": split,
    "row": add_axis,
    "middle": add_middle,
    "bare": strip,
    "bias": strip,
    "bias_row": strip_row,
    "join_latent": join_latent,
    "join_halves": join_halves,
    "joined": skip,
    "turn_experts": turn_experts,
}
"""What is done to tensors, by the last word of a `Row`."""
