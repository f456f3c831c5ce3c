"""What the weights of a model take when they are loaded, by the headers of its files."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from parallax_core.api import LoadedSize, ModelShape, Part, StagePlan, read_config
from parallax_core.api.source import TensorLocation, find_locations, read_index
from parallax_formats.matrix import Grid, split_name
from parallax_formats.rows import FLOAT_BITS, step_floats
from parallax_formats.schemes import (
    FORMATS,
    GGUF,
    Format,
    Settings,
    find_group,
    find_settings,
    name_method,
)

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
SCALE_BITS = {"gptq": 20, "awq": 20, "compressed-tensors": 16, "mlx": 32, "mxfp4": 8, "modelopt": 8, "bitsandbytes": 32}
"""Bits of the scale of a group, and of its offset, by the method; of others, whose blocks are large, none."""
GROUPS = {"gptq": 128, "awq": 128, "mlx": 64, "mxfp4": 32, "modelopt": 16, "bitsandbytes": 64}
"""Codes in a group where config.json does not tell, by the method; of others as many as a row has."""
PLAIN_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
BYTE_BITS = 8
MOST_MISSED = 4.0
"""If weights take more or fewer times what config.json tells, the index is of another model."""
ENDS_TOO = frozenset(["mlx", "gguf"])
"""Methods by which the embeddings and the head are quantised, too."""
EXPERTS_ALONE = frozenset(["mxfp4"])
"""Methods by which experts alone are quantised."""
EXPERT = re.compile(r"(?:^|\.)(?:experts|switch_mlp)\.")


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
    grid: Grid | None = None
    """The form of its codes, if they are steps of a scale."""
    is_expert: bool = False
    """Whether it belongs to experts that tokens are routed to."""
    sides: int = 0
    """Its rows and columns together, if it is a plain matrix; 0: unknown."""
    part: Part = "every"
    """The part of the model that it belongs to."""
    name: str = ""
    """As stored; empty: unknown."""


Weigh = Callable[[StoredWeight], float]
"""Returns the bytes that a weight takes when it is loaded."""
FindPart = Callable[[str], Part | None]
ADAPTED = 7
"""The matrices of a usual layer: four of attention, and three of a gated MLP."""


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
    numbers, weigh = count_numbers(plan.shape), make_weigh([weight for _, weight in stored])
    totals = {name: round(item * numbers) for name, item in others.items()}
    return replace(_sum_parts(plan.shape, stored, weigh), value_bytes=value_bytes, others=totals)


def keep_adapters(
    size: LoadedSize, plan: StagePlan, find_part: FindPart, weigh_side: Callable[[Sequence[StoredWeight]], float]
) -> LoadedSize:
    """Return the size of a model with memory for LoRA adapters on all matrices of its layers but those of experts.

    Args:
        size: without.
        plan: see `measure_loaded`.
        find_part: see `measure_loaded`.
        weigh_side: returns the bytes to keep for each row and column of a matrix, given the weights.
    """
    assert plan.shape is not None, "core has read it"
    stored = list(_list_stored(plan.model, plan.shape, find_part)) or list(_guess_stored(plan.model, plan.shape))
    taken = weigh_side([weight for _, weight in stored])
    return replace(size, adapters=tuple(round(taken * sides) for sides in _count_sides(plan.shape, stored)))


def measure_stored(folder: Path, shape: ModelShape, find_part: FindPart, total: int = 0) -> LoadedSize:
    """Return what the weights of a model take as they are stored.

    By the headers of its files if all are here, else by config.json.

    Args:
        folder: of the model.
        shape: of the model.
        find_part: tells the part of the model that a tensor belongs to.
        total: the bytes of all its weights, where only config.json tells how they are divided; 0: unknown.
    """
    if stored := list(_list_stored(folder, shape, find_part)):
        return _sum_parts(shape, stored, lambda weight: weight.num_bytes)
    stored = list(_guess_stored(folder, shape))
    is_coded = any(
        not weight.dtype for _, weight in stored
    )  # else weights are other than config.json says, all of them
    kept = sum(weight.num_bytes for _, weight in stored if weight.dtype) if is_coded else 0
    factor = (total - kept) / (sum(weight.num_bytes for _, weight in stored) - kept) if total else 1.0
    if not 1 / MOST_MISSED <= factor <= MOST_MISSED:
        factor = 1.0
    return _sum_parts(shape, stored, lambda weight: weight.num_bytes * (1.0 if kept and weight.dtype else factor))


def _sum_parts(shape: ModelShape, stored: Sequence[tuple[Part, StoredWeight]], weigh: Weigh) -> LoadedSize:
    sums: dict[Part, float] = {}
    experts = [0.0] * len(shape.layers)
    for part, weight in stored:
        taken = weigh(weight)
        sums[part] = sums.get(part, 0.0) + taken
        if weight.is_expert and isinstance(part, int):
            experts[part] += taken
    are_named = all(bool(layer.num_experts) == (taken > 0) for layer, taken in zip(shape.layers, experts, strict=True))
    return LoadedSize(
        layers=tuple(round(sums.get(number, 0.0)) for number in range(len(shape.layers))),
        experts=tuple(map(round, experts)) if are_named else (),
        before=round(sums.get("before", 0.0)),
        after=round(sums.get("after", 0.0)),
        is_tied=shape.is_tied,
    )


def _count_sides(shape: ModelShape, stored: Sequence[tuple[Part, StoredWeight]]) -> list[int]:
    """Return the rows and columns of the matrices of each layer, without those of experts.

    Where a shape is not known, one side is the width of the model.
    """
    sides, width = [0] * len(shape.layers), shape.hidden_size
    for part, weight in stored:
        if isinstance(part, int) and weight.is_matrix and not weight.is_expert:
            whole = weight.numbers >= shape.layers[part].weights - shape.layers[part].expert_weights
            guessed = (ADAPTED if whole else 1) * width + weight.numbers // width
            sides[part] += weight.sides or guessed
    return sides


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
        yield part, replace(weight, is_expert=EXPERT.search(name) is not None, part=part, name=name)


def _join_tensors(located: Mapping[str, TensorLocation], config: Settings) -> Iterator[tuple[str, StoredWeight]]:
    """Yield the names of weights, and what is stored of each."""
    method, settings = name_method(config), find_settings(config)
    formats, types = FORMATS.get(method, ()), settings.get("types") if method == GGUF else None
    layers: dict[str, dict[str, TensorLocation]] = {}
    for name, location in located.items():
        stem, word = split_name(name)
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
    numbers, scales = len(words[one.codes]) * 8 // bits, words.get(one.scales)
    grid = None
    if scales is not None and len(scales.shape) >= MATRIX:
        grid = one.grid(_list_dtypes(words), settings, Grid(bits, numbers // max(1, math.prod(scales.shape))))
    return StoredWeight(numbers, total, grid=grid)


def _describe_tensor(location: TensorLocation, types: Mapping[str, str]) -> StoredWeight | None:
    """Return a weight that is one tensor; None for scales that count with their numbers."""
    numbers, size = math.prod(location.shape), len(location)
    if location.name.endswith(SCALES):
        return None
    if location.name.endswith(BLOCKS):
        return StoredWeight(numbers * 2, size + numbers * 2 // 32, grid=step_floats(Grid(FLOAT_BITS, 32)))
    if form := types.get(location.name, ""):
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # it takes half a second to import

        per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[form]]
        return StoredWeight(size // block_bytes * per_block, size, form=form)
    sides = sum(location.shape) if len(location.shape) == MATRIX else 0
    return StoredWeight(
        numbers, size, KINDS.get(location.kind, ""), is_matrix=len(location.shape) >= MATRIX, sides=sides
    )


def _guess_stored(folder: Path, shape: ModelShape) -> Iterator[tuple[Part, StoredWeight]]:
    """Yield the weights of each part of a model by config.json alone."""
    config = read_config(folder)
    method, dtype = name_method(config), _find_dtype(config)
    plain, coded = PLAIN_BYTES.get(dtype, 2), _guess_bits(method, find_settings(config)) / 8

    def describe(numbers: int, *, is_plain: bool, is_expert: bool = False) -> StoredWeight:
        taken = round(numbers * (plain if is_plain else coded))
        return StoredWeight(numbers, taken, dtype if is_plain else "", is_expert=is_expert)

    for number, layer in enumerate(shape.layers):
        experts = layer.expert_weights
        is_plain = not method or (method in EXPERTS_ALONE and experts > 0)
        yield number, describe(layer.weights - layer.table_weights - experts, is_plain=is_plain)
        if experts:
            yield number, describe(experts, is_plain=not method, is_expert=True)
    ends: list[tuple[Part, int]] = [("before", shape.before_weights), ("after", shape.after_weights)]
    for end, numbers in ends:
        yield end, replace(describe(numbers, is_plain=method not in ENDS_TOO), part=end)


def _find_dtype(config: Settings) -> str:
    inner = config.get("text_config")
    told = [place.get(key) for place in (config, inner if isinstance(inner, Mapping) else {}) for key in DTYPE_KEYS]
    return next((found for found in told if isinstance(found, str)), "bfloat16")


def _guess_bits(method: str, settings: Settings) -> float:
    """Return the bits of a quantised weight with its share of scales, as far as config.json tells."""
    told = find_group(settings) or settings
    bits, group = told.get("bits", told.get("num_bits")), told.get("group_size", told.get("q_group_size"))
    if type(bits) is not int or not 0 < bits <= BYTE_BITS:
        is_fp8 = settings.get("quant_algo") == "FP8"
        bits = 4 if settings.get("load_in_4bit") is True else BYTE_BITS if is_fp8 else TYPICAL.get(method, BYTE_BITS)
    if type(group) is not int or group < 1:
        group = GROUPS.get(method, 0)
    return bits + (SCALE_BITS.get(method, 0) / group if group else 0.0)
