"""Reads a LoRA adapter from a folder in PEFT's format; nothing in it is run, and no byte is copied."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parallax_adapters.peft_config import CONFIG, HINT, MOST_CONFIG_BYTES, LoraConfig, parse_config, read_pairs
from parallax_adapters.peft_experts import INNER, MOST_NAME, name_stacks
from parallax_core.api import LayerRange, ParallaxError, Tensor, Unsupported, read_tensors, silent

WEIGHTS = "adapter_model.safetensors"
LENGTH_BYTES = 8
"""The bytes before the header of a safetensors file, which give its length."""
MOST_HEADER_BYTES = 16 * 2**20
"""The most bytes of that header: some 100,000 matrices."""
MOST_WEIGHT_BYTES = 8 * 2**30
"""The most bytes of an adapter's matrices."""
CHUNK = 2**22
"""The numbers that are checked at a time."""
COPY = "copy or fetch the adapter again"
MATRIX = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<part>[AB])(?:\.default)?\.weight")
"""Matches the name of a matrix."""
MODULE = re.compile(r"(?:(?:model|backbone|language_model|text_model)\.)*(layers\.\d+\.[\w.]+)")
"""Matches the name of a module in a layer, however its language model is wrapped; others read images or sounds."""
MOST_TRIES = 20_000
"""The most times that the name of a module is held against a regular expression."""
EXPONENTS: Mapping[str, tuple[type[np.unsignedinteger], int]] = {
    "float32": (np.uint32, 0x7F800000),
    "float16": (np.uint16, 0x7C00),
    "bfloat16": (np.uint16, 0x7F80),
}
"""The integers over numbers of each dtype, and the bits that all are 1 in a number that is not finite."""
KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""The names of dtypes in files."""


@dataclass(frozen=True, eq=False, slots=True)
class LowRank:
    """The matrices of a module: it adds ``scale * (b @ (a @ x))`` to its output."""

    a: Tensor
    """Of shape [rank, in], in the memory of the file."""
    b: Tensor
    """Of shape [out, rank]."""
    scale: float
    count: int = 1
    """The experts, for a stack of such, whose matrices are [experts * rank, in] and [out, rank * experts]."""

    @property
    def rank(self) -> int:
        """The rank."""
        return self.a.shape[0] // self.count


@dataclass(frozen=True, eq=False, slots=True)
class Adapter:
    """A LoRA adapter, checked as far as that is possible without its base model."""

    modules: Mapping[str, LowRank]
    """By the name of the module from its layer on, such as ``layers.3.self_attn.q_proj``."""
    num_bytes: int
    """Of all matrices."""

    @property
    def rank(self) -> int:
        """The largest rank."""
        return max(each.rank for each in self.modules.values())

    def check_finite(self) -> None:
        """Read all numbers once.

        Raises:
            Unsupported: if one is not finite.
        """
        for name, matrices in self.modules.items():
            if not all(map(_is_finite, (matrices.a, matrices.b))):
                raise Unsupported(f"{name} has numbers that are not finite", "train the adapter again")


def read_adapter(folder: Path, max_rank: int = 0) -> Adapter:
    """Return the adapter in a folder; its matrices are mapped into memory.

    Args:
        folder: with ``adapter_config.json`` and ``adapter_model.safetensors``.
        max_rank: the largest rank that is allowed; 0: any.

    Raises:
        Unsupported: if it is not an adapter that this server can use; the message says why.
        ParallaxError: if a file is missing or damaged.
    """
    data_bytes = check_files(folder)
    adapter = _read(folder, lambda _: True)
    if not adapter.modules:
        raise Unsupported(f"{WEIGHTS} has no matrices", HINT)
    if adapter.num_bytes > data_bytes:
        raise Unsupported(f"{WEIGHTS} has matrices that lie over each other", COPY)
    check_rank(adapter.rank, max_rank)
    return adapter


def check_rank(rank: int, most: int) -> None:
    """Raise Unsupported if a rank is larger than is allowed; 0: any is."""
    if most and rank > most:
        message = f"the adapter has the rank {rank}; at most {most} is allowed"
        raise Unsupported(message, "an operator can allow more with PARALLAX_ADAPTERS__MAX_RANK")


def read_layers(folder: Path, layers: LayerRange | None = None) -> Adapter:
    """Return the part of an adapter that belongs to some layers, or all of it, from files of single layers.

    Raises:
        ParallaxError: if a file is damaged.
    """
    return _read(folder, lambda name: layers is None or layers.start <= _find_layer(name) < layers.stop)


def split_layers(folder: Path) -> dict[int, list[tuple[str, Tensor]]]:
    """Return the matrices of an adapter that `read_adapter` takes, by the number of their layer."""
    found: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in read_tensors(folder, lambda _: True, silent):
        found.setdefault(_find_layer(name), []).append((name, tensor))
    return found


def write_matrices(path: Path, matrices: Sequence[tuple[str, Tensor]]) -> None:
    """Write matrices to a safetensors file: the same bytes for the same matrices, in whatever order.

    Raises:
        OSError: if it cannot be written.
    """
    header, place, ordered = {}, 0, sorted(matrices, key=lambda each: each[0])
    for name, tensor in ordered:
        end = place + memoryview(tensor.data).nbytes
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for _, tensor in ordered:
            file.write(tensor.data)


def _read(folder: Path, is_wanted: Callable[[str], bool]) -> Adapter:
    config = parse_config((folder / CONFIG).read_bytes())
    try:
        tensors = dict(read_tensors(folder, is_wanted, silent))
    except OSError as error:
        raise ParallaxError(f"{folder.name} cannot be read: {error}", COPY) from error
    num_bytes = sum(memoryview(each.data).nbytes for each in tensors.values())
    return Adapter(dict(_pair(tensors, config)), num_bytes)


def _find_layer(name: str) -> int:
    """Return the number of the layer of a matrix, -1 if it is in none."""
    found, module = MATRIX.fullmatch(name), None
    if found is not None:
        module = MODULE.fullmatch(found["module"])
    return -1 if module is None else int(module[1].split(".")[1])


def check_files(folder: Path) -> int:
    """Check that a folder has the files of an adapter, and return the bytes of its numbers.

    Raises:
        Unsupported: if it has pickled weights only, or links out of the folder, or a file is too large.
        ParallaxError: if a file is missing.
    """
    for name, most in ((CONFIG, MOST_CONFIG_BYTES), (WEIGHTS, MOST_WEIGHT_BYTES + MOST_HEADER_BYTES)):
        path = folder / name
        try:
            found = path.stat()
        except (OSError, ValueError) as error:
            raise _explain_absence(folder, name) from error
        if not stat.S_ISREG(found.st_mode) or path.resolve().parent != folder.resolve():
            raise Unsupported(f"{name} is not a regular file in {folder}", "copy it there")
        if found.st_size > most:
            raise Unsupported(f"{name} has {found.st_size} bytes; at most {most} are allowed")
    with (folder / WEIGHTS).open("rb") as file:
        end = measure_header(begin := file.read(LENGTH_BYTES))
        check_header(file.read(end - len(begin)))
        return found.st_size - end


def measure_header(begin: bytes) -> int:
    """Return where the header of matrices ends, by the first bytes of their file; without any, how many tell it.

    Raises:
        Unsupported: if it is too long.
    """
    if len(begin) < LENGTH_BYTES:
        return LENGTH_BYTES
    if (length := int.from_bytes(begin[:LENGTH_BYTES], "little")) > MOST_HEADER_BYTES:
        raise Unsupported(f"{WEIGHTS} has a header of {length} bytes; at most {MOST_HEADER_BYTES} are allowed")
    return LENGTH_BYTES + length


def check_header(header: bytes, max_rank: int = 0) -> None:
    """Refuse a header that Python cannot hold, with a name twice, or of matrices with a larger rank than is allowed.

    Raises:
        Unsupported: if it is one of these.
    """
    try:
        fields = json.loads(header, object_pairs_hook=read_pairs)
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{WEIGHTS} is damaged: its header is not valid JSON: {str(error)[:80]}", COPY) from error
    for name, entry in fields.items() if isinstance(fields, dict) else ():
        match = MATRIX.fullmatch(name)
        shape = entry.get("shape") if match is not None and isinstance(entry, dict) else None
        is_stack = match is not None and f".{match['module']}.".replace(INNER, "").endswith(".experts.")
        if match and not is_stack and isinstance(shape, list) and [type(side) for side in shape] == [int, int]:
            check_rank(shape["AB".index(match["part"])], max_rank)


def _explain_absence(folder: Path, name: str) -> ParallaxError:
    try:
        pickled = sorted(each.name for each in folder.glob("adapter_model.*") if each.suffix in {".bin", ".pt", ".pth"})
    except (OSError, ValueError):
        pickled = []
    if name == WEIGHTS and pickled:
        message = f"{pickled[0]} is a pickle, which could run any code"
        return Unsupported(message, f"save the adapter as {WEIGHTS}, which PEFT does by default")
    return ParallaxError(f"there is no {name} in {folder}", "name the folder of a LoRA adapter as PEFT saves it")


def _pair(tensors: Mapping[str, Tensor], config: LoraConfig) -> Iterator[tuple[str, LowRank]]:
    """Yield the matrices of each module, after checking them against each other and the settings."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = MATRIX.fullmatch(name)
        if match is None:
            raise Unsupported(f"{WEIGHTS} has {name[:200]}, which is no matrix of plain LoRA", HINT)
        found.setdefault(match["module"], {})[match["part"]] = tensor
    if len(found) * config.num_expressions > MOST_TRIES:
        message = (
            f"{config.num_expressions} patterns that are regular expressions are too many for {len(found)} modules"
        )
        raise Unsupported(message, "write out the modules")
    seen = set()
    stacks = name_stacks({module: _measure(module, parts) for module, parts in found.items()}, config.parameters)
    for given, parts in found.items():
        module = stacks.get(given, given)
        short = MODULE.fullmatch(module)
        if short is None or len(module) > MOST_NAME:
            message = f"the adapter changes {module[:200]}, which is in no layer of a language model"
            raise Unsupported(message, "train it on those layers only")
        if short[1] in seen:
            raise Unsupported(f"the adapter has two modules {short[1]}", HINT)
        seen.add(short[1])
        yield short[1], _join(module, parts, config, is_stack=given in stacks)


def _measure(module: str, parts: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the inputs and outputs of the matrices of a module."""
    if parts.keys() != {"A", "B"}:
        raise Unsupported(f"{module} has only one of its two matrices", COPY)
    shapes = parts["A"].shape, parts["B"].shape
    if not all(len(each) == 2 and 0 not in each for each in shapes):  # noqa: PLR2004 -- matrices
        raise Unsupported(f"{module} has matrices of shapes {list(shapes[0])} and {list(shapes[1])}", COPY)
    return shapes[0][1], shapes[1][0]


def _join(module: str, parts: Mapping[str, Tensor], config: LoraConfig, *, is_stack: bool) -> LowRank:
    a, b, rank = parts["A"], parts["B"], config.find_rank(module)
    count = max(1, a.shape[0] // rank) if is_stack else 1
    if not a.shape[0] == b.shape[1] == rank * count:
        message = f"{module} has matrices of shapes {list(a.shape)} and {list(b.shape)}, and the rank {rank}"
        raise Unsupported(message, COPY)
    if a.dtype not in EXPONENTS or b.dtype not in EXPONENTS or (count > 1 and a.dtype != b.dtype):
        raise Unsupported(f"{module} is {a.dtype}, {b.dtype}; supported are {', '.join(EXPONENTS)}", COPY)
    return LowRank(a, b, config.find_scale(module), count)


def to_floats(tensor: Tensor) -> npt.NDArray[np.float32]:
    """Return a matrix in float32, which holds all numbers of a matrix of an adapter."""
    if tensor.dtype == "bfloat16":
        bits = np.frombuffer(tensor.data, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(tensor.shape)
    kind = np.float16 if tensor.dtype == "float16" else np.float32
    return np.frombuffer(tensor.data, kind).astype(np.float32).reshape(tensor.shape)


def _is_finite(tensor: Tensor) -> bool:
    kind, mask = EXPONENTS[tensor.dtype]
    bits = np.frombuffer(tensor.data, kind)
    return not any(
        bool(np.any((bits[start : start + CHUNK] & kind(mask)) == mask)) for start in range(0, len(bits), CHUNK)
    )
