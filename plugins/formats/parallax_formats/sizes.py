"""What the weights of a model take when they are loaded, by the headers of its files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from parallax_core.api import LoadedSize, ModelShape, Part, StagePlan, read_config
from parallax_core.api.source import TensorLocation, find_locations, read_index
from parallax_formats.schemes import FORMATS, GGUF, Format, Settings, find_settings, name_method

MATRIX = 2
KINDS = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "U8": "uint8",
    "I8": "int8",
    "I32": "int32",
    "U32": "uint32",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
"""The dtypes of tensors by their names in files."""
BLOCKS, SCALES = "_blocks", "_scales"
"""The ends of the names of numbers of 4 bits and their scales, as gpt-oss has them."""
DTYPE_KEYS = ("dtype", "torch_dtype")
TYPICAL = {"gptq": 4, "awq": 4, "compressed-tensors": 4, "mlx": 4, "mxfp4": 4, "modelopt": 4}
"""Bits of a code where config.json does not tell, by the method; of others 8."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight as it is stored, whatever the number of its tensors."""

    numbers: int
    """The number of weights."""
    num_bytes: int
    """Of its tensors in the files."""
    dtype: str = ""
    """Of its numbers, if they are plain, such as ``bfloat16``; empty: they are codes."""
    form: str = ""
    """The type of the blocks of a GGUF file; empty: it is of another one."""
    is_matrix: bool = True
    """Whether it is more than a vector."""


Weigh = Callable[[StoredWeight], float]
"""Returns the bytes that a weight takes when it is loaded."""
FindPart = Callable[[str], Part | None]


def measure_loaded(
    plan: StagePlan,
    find_part: FindPart,
    make_weigh: Callable[[Sequence[StoredWeight]], Weigh],
    value_bytes: int = 2,
    others: Mapping[str, float] = MappingProxyType({}),
) -> LoadedSize:
    """Return what the weights of a model take; see `parallax_core.api.BackendSpec.size`.

    Args:
        plan: of the model, with its shape.
        find_part: tells the part of the model that a tensor belongs to.
        make_weigh: returns what weighs one of the weights that it is given.
        value_bytes: see `LoadedSize.value_bytes`.
        others: the bytes of a number in other forms; see `LoadedSize.others`.
    """
    assert plan.shape is not None, "core has read it"
    stored = list(_list_stored(plan.model, plan.shape, find_part)) or list(_guess_stored(plan.model, plan.shape))
    weigh = make_weigh([weight for _, weight in stored])
    sums: dict[Part, float] = {}
    for part, weight in stored:
        sums[part] = sums.get(part, 0.0) + weigh(weight)
    numbers = count_numbers(plan.shape)
    return LoadedSize(
        layers=tuple(round(sums.get(number, 0.0)) for number in range(len(plan.shape.layers))),
        before=round(sums.get("before", 0.0)),
        after=round(sums.get("after", 0.0)),
        is_tied=plan.shape.is_tied,
        value_bytes=value_bytes,
        others={name: round(item * numbers) for name, item in others.items()},
    )


def count_numbers(shape: ModelShape) -> int:
    """Return the weights of a model that are loaded: all but those of tables."""
    layers = sum(layer.weights - layer.table_weights for layer in shape.layers)
    return shape.before_weights + layers + shape.after_weights


def find_stored(stored: Sequence[StoredWeight]) -> str:
    """Return the dtype of most plain numbers in matrices; ``float32`` without any."""
    sizes: Counter[str] = Counter()
    for weight in stored:
        if weight.is_matrix and weight.dtype:
            sizes[weight.dtype] += weight.num_bytes
    return sizes.most_common(1)[0][0] if sizes else "float32"


def _list_stored(folder: Path, shape: ModelShape, find_part: FindPart) -> Iterator[tuple[Part, StoredWeight]]:
    """Yield the weights of a model by the headers of its files; nothing if a header is not here."""
    located = {each.name: each for path in folder.glob("*.safetensors") for each in find_locations(path)}
    if not located or not read_index(folder).keys() <= located.keys():
        return
    config, num_layers = read_config(folder), len(shape.layers)
    tables = [layer.table_weights for layer in shape.layers]
    for name, weight in _join_tensors(located, config):
        part = find_part(name)
        is_beyond = part is None or part == "every" or (isinstance(part, int) and part >= num_layers)
        if is_beyond or (shape.is_tied and "lm_head" in name.split(".")):
            continue
        assert part is not None
        if isinstance(part, int) and tables[part] and weight.numbers >= tables[part]:
            continue  # its rows stay in the file
        yield part, weight


def _join_tensors(located: Mapping[str, TensorLocation], config: Settings) -> Iterator[tuple[str, StoredWeight]]:
    """Yield the names of weights, and what is stored of each."""
    method, settings = name_method(config), find_settings(config)
    formats, types = FORMATS.get(method, ()), settings.get("types") if method == GGUF else None
    layers: dict[str, dict[str, TensorLocation]] = {}
    for name, location in located.items():
        stem, _, word = name.rpartition(".")
        layers.setdefault(stem, {})[word] = location
    for stem, words in layers.items():
        one = next((each for each in formats if each.takes(_list_dtypes(words))), None)
        if one is not None:
            yield f"{stem}.weight", _count_codes(one, stem, words, settings)
        for word, location in words.items():
            if one is not None and word in one.list_words():
                continue
            if weight := _describe_tensor(location, types if isinstance(types, Mapping) else {}):
                yield f"{stem}.{word}" if stem else word, weight


def _list_dtypes(words: Mapping[str, TensorLocation]) -> dict[str, str]:
    return {word: KINDS.get(location.kind, location.kind) for word, location in words.items()}


def _count_codes(one: Format, stem: str, words: Mapping[str, TensorLocation], settings: Settings) -> StoredWeight:
    bits = one.bits(stem, settings)
    total = sum(len(location) for word, location in words.items() if word in one.list_words())
    return StoredWeight(len(words[one.codes]) * 8 // bits, total)


def _describe_tensor(location: TensorLocation, types: Mapping[str, str]) -> StoredWeight | None:
    """Return a weight that is one tensor; None for scales that count with their numbers."""
    numbers, size = math.prod(location.shape), len(location)
    if location.name.endswith(SCALES):
        return None
    if location.name.endswith(BLOCKS):
        return StoredWeight(numbers * 2, size + numbers * 2 // 32)
    if form := types.get(location.name, ""):
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # it takes half a second to import

        per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[form]]
        return StoredWeight(size // block_bytes * per_block, size, form=form)
    return StoredWeight(numbers, size, KINDS.get(location.kind, ""), is_matrix=len(location.shape) >= MATRIX)


def _guess_stored(folder: Path, shape: ModelShape) -> Iterator[tuple[Part, StoredWeight]]:
    """Yield a weight for each part of a model, by config.json alone."""
    config = read_config(folder)
    inner = config.get("text_config")
    told = [place.get(key) for place in (config, inner if isinstance(inner, Mapping) else {}) for key in DTYPE_KEYS]
    dtype = next((found for found in told if isinstance(found, str)), "bfloat16")
    method, bits = name_method(config), find_settings(config).get("bits")
    bits = bits if type(bits) is int and 0 < bits <= 8 else TYPICAL.get(method, 8)  # noqa: PLR2004 -- of a byte

    def describe(numbers: int, *, is_end: bool) -> StoredWeight:
        is_plain = not method or (is_end and method != "mlx")
        return StoredWeight(numbers, numbers * 2 if is_plain else numbers * bits // 8, dtype if is_plain else "")

    for number, layer in enumerate(shape.layers):
        yield number, describe(layer.weights - layer.table_weights, is_end=False)
    yield "before", describe(shape.before_weights, is_end=True)
    yield "after", describe(shape.after_weights, is_end=True)
