"""Makes tensors of a model folder from those of a GGUF file: the order of values, and their form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from parallax_formats.gguf import TensorInfo, are_finite, damaged, read_chunks
from parallax_source_pypi.tensors import Slot, Source

Array = npt.NDArray[np.float16] | npt.NDArray[np.float32] | npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
ReadRows = Callable[[], npt.NDArray[np.uint8]]
"""Returns stored rows."""
T = TypeVar("T", bound=np.generic)
BFLOAT16 = "BF16"
ITEM_BYTES = {"U8": 1, "F16": 2, BFLOAT16: 2, "F32": 4}
"""The dtypes of tensors that are made, and the size of one element in bytes."""
MATRIX = 2
NIBBLE = 15


@dataclass(frozen=True, slots=True)
class Converted:
    """A tensor of the model folder, which is made when it is needed."""

    name: str
    shape: tuple[int, ...]
    """Of the values; blocks are rows of bytes."""
    dtype: str
    """As safetensors names it; empty: F16, or F32 if the values need that."""
    make: Callable[[], Array]
    """Makes the values; those of BF16 as uint16.

    Raises:
        ParallaxError: if a value is infinite or not a number.
        Unsupported: if the gguf package does not read the type.
    """
    kind: str = ""
    """The type of the blocks, if the values are these."""
    sources: tuple[TensorInfo, ...] = ()
    """The tensors of the file that it is made of."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the values, if the dtype is known."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def convert_slot(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the tensors of the folder that one of the file becomes; no value is read.

    Raises:
        ParallaxError: if tensors of the file do not fit each other.
    """
    yield from TREATMENTS[slot.row.treatment](slot, source)


def keep(slot: Slot, source: Source, read: ReadRows, shape: tuple[int, ...], name: str) -> Converted:
    """Return stored rows as a tensor: as they are, or as floats in ``shape`` if the folder has no blocks."""
    info, kind = slot.info, slot.info.kind

    def make(dtype: str, change: Callable[[npt.NDArray[np.uint8]], Array]) -> Converted:
        return Converted(name, shape, dtype, lambda: change(read()).reshape(shape), sources=(info,))

    if not source.keeps_blocks:
        return make("", lambda rows: narrow(slot, rows, shape[-1]))
    if kind == GGMLQuantizationType.F32:
        return make("F32", lambda rows: check(slot, rows.view(np.float32)))
    if kind == GGMLQuantizationType.F16:
        return make("F16", lambda rows: check(slot, rows.view(np.float16)))
    if kind == GGMLQuantizationType.BF16:
        return make(BFLOAT16, lambda rows: check_blocks(slot, rows).view(np.uint16))
    if len(shape) != MATRIX:
        return make("F32", lambda rows: widen_rows(slot, rows, shape[-1]))
    blocks = (shape[0], info.row_bytes)
    return Converted(
        name, blocks, "U8", lambda: np.ascontiguousarray(check_blocks(slot, read())), kind.name, sources=(info,)
    )


def compute(name: str, shape: tuple[int, ...], make: Callable[[], Array], *sources: TensorInfo) -> Converted:
    """Return a tensor in float32."""
    return Converted(name, shape, "F32", make, sources=sources)


def widen(slot: Slot, source: Source, info: TensorInfo | None = None) -> npt.NDArray[np.float32]:
    """Return a tensor in float32, in its shape."""
    info = info or slot.info
    rows = source.file.read_rows(info)
    return widen_rows(slot, rows, info.shape[-1], info.kind).reshape(info.shape)


def widen_rows(
    slot: Slot, rows: npt.NDArray[np.uint8], width: int, kind: GGMLQuantizationType | None = None
) -> npt.NDArray[np.float32]:
    """Return rows in float32."""
    whole = np.concatenate([values for _, values in read_chunks(rows, kind or slot.info.kind, width)])
    check(slot, whole)
    return whole


def narrow(slot: Slot, rows: npt.NDArray[np.uint8], width: int) -> Array:
    """Return rows as float16, or as float32 if float16 cannot hold the largest value."""
    made = np.empty((len(rows), width), np.float16)
    for start, values in read_chunks(rows, slot.info.kind, width):
        check(slot, values)
        if np.abs(values).max() > np.finfo(np.float16).max:
            return widen_rows(slot, rows, width)
        made[start : start + len(values)] = values
    return made


def check(slot: Slot, values: Array) -> Array:
    """Return the values, if all are finite."""
    if not np.isfinite(values).all():
        raise not_finite(slot)
    return values


def check_blocks(slot: Slot, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return stored rows, if all their numbers are finite."""
    if not are_finite(rows, slot.info.kind):
        raise not_finite(slot)
    return rows


def not_finite(slot: Slot) -> Exception:
    """Return the error for infinities, and for what is not a number."""
    return damaged(f"the tensor {slot.info.name!r} has values that are not finite")


def copy(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the tensor as it is."""
    yield keep(slot, source, lambda: source.file.read_rows(slot.info), slot.info.shape, slot.name())


def turn(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield query or key rows in the standard order.

    For some architectures, rope rotates neighbouring rows (0, 1), (2, 3), ... of a head; in the standard layout it
    rotates rows i and i + head / 2. Rows are packed one by one, so packed rows can be moved.
    """
    info = slot.info
    if slot.suffix == "bias":
        yield compute(slot.name(), info.shape, lambda: turn_rows(widen(slot, source)[:, None], source)[:, 0], info)
    else:
        yield keep(slot, source, lambda: turn_rows(source.file.read_rows(info), source), info.shape, slot.name())


def turn_rows(rows: npt.NDArray[T], source: Source) -> npt.NDArray[T]:
    """Return the rows of all heads in the standard order."""
    pairs = rows.reshape(-1, source.sizes["head"] // 2, 2, rows.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def less_1(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield a norm to which the model adds 1, as llama.cpp stores it: with 1 added."""
    yield compute(slot.name(), slot.info.shape, lambda: widen(slot, source) - np.float32(1), slot.info)


def split(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the matrix of each expert."""
    shape = slot.info.shape
    height = slot.info.num_rows // shape[0]
    for number in range(shape[0]):
        part = slice(number * height, (number + 1) * height)
        yield keep(slot, source, partial(read_part, slot, source, part), shape[1:], slot.name(number))


def read_part(slot: Slot, source: Source, part: slice) -> npt.NDArray[np.uint8]:
    """Return some of the stored rows."""
    return source.file.read_rows(slot.info)[part]


def add_axis(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield a vector as a matrix of one row."""
    yield compute(slot.name(), (1, *slot.info.shape), lambda: widen(slot, source)[None], slot.info)


def add_middle(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the kernels of a convolution, [channels, 1, width]."""
    channels, *rest = slot.info.shape
    yield compute(slot.name(), (channels, 1, *rest), lambda: widen(slot, source)[:, None], slot.info)


def strip(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield a tensor that is a parameter of its own in transformers."""
    yield compute(bare_name(slot), slot.info.shape, lambda: widen(slot, source), slot.info)


def strip_row(slot: Slot, source: Source) -> Iterator[Converted]:
    """The same, as a matrix of one row."""
    yield compute(bare_name(slot), (1, *slot.info.shape), lambda: widen(slot, source)[None], slot.info)


def bare_name(slot: Slot) -> str:
    """Return the name in the folder without ``.weight`` or ``.bias``."""
    return slot.name().removesuffix(f".{slot.suffix}")


def join_latent(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the projection from latents to keys and values, of which llama.cpp stores the keys' part transposed."""
    other = source.file.tensors.get(slot.info.name.replace("attn_k_b", "attn_v_b"))
    if other is None:
        raise damaged(f"it has {slot.info.name!r}, and no 'attn_v_b'")
    (heads, latent, key), (other_heads, value, other_latent) = slot.info.shape, other.shape
    if heads != other_heads or latent != other_latent:
        raise damaged(f"{slot.info.name!r} and {other.name!r} do not fit together")

    def join() -> Array:
        keys, values = widen(slot, source).swapaxes(1, 2), widen(slot, source, other)
        return np.concatenate([keys, values], axis=1).reshape(-1, latent)

    yield compute(slot.name(), (heads * (key + value), latent), join, slot.info, other)


def join_halves(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield gate and up of all experts of GPT-OSS, row by row in turn."""
    info = slot.info
    other = source.file.tensors.get(info.name.replace("_gate_", "_up_"))
    if other is None or other.shape != info.shape or other.kind != info.kind:
        raise damaged(f"it has no tensor like {info.name!r} for the other half")
    name, (experts, size) = bare_name(slot), info.shape[:2]

    def join_bias() -> Array:
        return np.stack([widen(slot, source), widen(slot, source, other)], axis=-1).reshape(experts, -1)

    def join_rows() -> npt.NDArray[np.uint8]:
        stacked = [source.file.read_rows(each) for each in (info, other)]
        return np.stack(stacked, axis=1).reshape(experts, 2 * size, -1)

    def join() -> Array:
        both = np.stack([widen(slot, source), widen(slot, source, other)], axis=2)
        return np.ascontiguousarray(both.reshape(experts, 2 * size, -1).swapaxes(1, 2))

    if slot.suffix == "bias":
        yield compute(f"{name}_bias", (experts, 2 * size), join_bias, info, other)
    elif info.kind == GGMLQuantizationType.MXFP4:
        yield from repack(join_rows, (experts, 2 * size, info.shape[-1]), name, info, other)
    else:
        yield compute(name, (experts, info.shape[-1], 2 * size), join, info, other)


def turn_experts(slot: Slot, source: Source) -> Iterator[Converted]:
    """Yield the way back of all experts of GPT-OSS."""
    name, info = bare_name(slot), slot.info
    if slot.suffix == "bias":
        yield compute(f"{name}_bias", info.shape, lambda: widen(slot, source), info)
        return
    experts, size, width = info.shape
    if info.kind == GGMLQuantizationType.MXFP4:
        yield from repack(lambda: source.file.read_rows(info).reshape(experts, size, -1), info.shape, name, info)
    else:
        turned = (experts, width, size)
        yield compute(name, turned, lambda: np.ascontiguousarray(widen(slot, source).swapaxes(1, 2)), info)


def repack(read: ReadRows, shape: tuple[int, ...], name: str, *sources: TensorInfo) -> Iterator[Converted]:
    """Yield MXFP4 as GPT-OSS is published: blocks [experts, rows, groups, 16], and scales [experts, rows, groups].

    A block of a GGUF file has its scale, and then the numbers 0 and 16, 1 and 17, ...; here 0 and 1 share a byte.
    """
    scales = (*shape[:-1], shape[-1] // 32)

    def read_groups() -> npt.NDArray[np.uint8]:
        return read().reshape(*scales, 17)

    def pack() -> Array:
        groups = read_groups()
        codes = np.concatenate([groups[..., 1:] & NIBBLE, groups[..., 1:] >> 4], axis=-1)
        packed: npt.NDArray[np.uint8] = codes[..., 0::2] | codes[..., 1::2] << 4
        return packed

    yield Converted(f"{name}_blocks", (*scales, 16), "U8", pack, sources=sources)
    yield Converted(
        f"{name}_scales", scales, "U8", lambda: np.ascontiguousarray(read_groups()[..., 0]), sources=sources
    )


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
