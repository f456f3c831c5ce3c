"""The formats of quantised weights in model folders, by what config.json says of them.

A format is a row of `FORMATS`: which tensors a weight is made of, and what reads them. Everything else follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parallax_core.api import Tensor, Unsupported
from parallax_formats.columns import Awq, Gptq
from parallax_formats.matrix import Grid, Matrix, Parts, split_name
from parallax_formats.normal import OUTER_SIZES, OUTER_TABLE, ROW_SCALES, SIZES, STATES, TABLE, RowScaled, TableFloats
from parallax_formats.rows import AFFINE_BITS, Affine, MicroScaled, PackedFloats, PackedIntegers, step_floats
from parallax_formats.scaled import CODES, check_left, read_scaled, step_integers

Settings = Mapping[str, Any]
HINT = "choose another backend, or a model in another format"
SCALES = frozenset(["weight_scale", "weight_scale_inv"])
ACTIVATIONS = frozenset(["input_scale", "activation_scale", "input_global_scale", "k_scale", "v_scale", "output_scale"])
"""Words of tensors that say how activations may be rounded; nothing here rounds them."""
GPTQ_BITS = (2, 3, 4, 8)
PACKED_BITS = (2, 3, 4, 5, 6, 8)
MX_MODES = ("mxfp4", "mxfp8", "nvfp4")
GGUF = "gguf"
"""The method of a model whose tensors are blocks of a GGUF file; see `gguf.blocks`."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way to store a weight."""

    name: str
    codes: str
    """The word of the tensor with its numbers, such as ``qweight``."""
    needs: frozenset[str]
    """Words of further tensors that it has."""
    read: Callable[[Parts, Settings], Matrix]
    """Returns the weight; raises ParallaxError or Unsupported."""
    may_have: frozenset[str] = frozenset()
    needs_any: frozenset[str] = frozenset()
    """Words of tensors of which it has at least one."""
    dtypes: frozenset[str] = frozenset()
    """The dtypes that its numbers may have; empty: any."""
    bits: Callable[[str, Settings], int] = lambda _stem, _settings: 8
    """Returns the bits of a code of the layer of a name, as far as config.json tells."""

    scales: str = ""
    """The word of the scales of groups, if its codes may be steps of a scale; see `Matrix.grid`."""
    grid: Callable[[Mapping[str, str], Settings, Grid], Grid | None] = lambda _words, _settings, plain: plain
    """Returns the form of the codes, by the dtype of each tensor of a weight and the bits and groups as stored."""

    def takes(self, words: Mapping[str, str]) -> bool:
        """Return whether the tensors of a layer, the dtype of each by its word, are a weight in this format."""
        found = words.get(self.codes)
        if found is None or not self.needs <= words.keys() or (self.dtypes and found not in self.dtypes):
            return False
        return not self.needs_any or bool(self.needs_any & words.keys())

    def list_words(self) -> frozenset[str]:
        """Return the words of all tensors that belong to a weight in this format."""
        return frozenset([self.codes]) | self.needs | self.may_have | self.needs_any | ACTIVATIONS


def _read_block(parts: Parts, settings: Settings) -> Matrix:
    found = settings.get("weight_block_size") or find_group(settings).get("block_structure") or (0, 0)
    is_pair = isinstance(found, list | tuple) and len(found) == 2  # noqa: PLR2004 -- rows and columns
    if not is_pair or any(type(size) is not int or size < 0 for size in found):
        raise Unsupported(f"'weight_block_size' in config.json is {found!r}, not two sizes", HINT)
    return read_scaled(parts, (found[0], found[1]))


def find_group(settings: Settings) -> Settings:
    """Return what compressed-tensors says of weights; empty if it says nothing, or of several groups."""
    groups = settings.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        return {}
    found = next(iter(groups.values()))
    weights = found.get("weights") if isinstance(found, Mapping) else None
    return weights if isinstance(weights, Mapping) else {}


def _read_awq(parts: Parts, settings: Settings) -> Matrix:
    version, bits = str(settings.get("version") or "gemm").lower(), settings.get("bits", settings.get("w_bit", 4))
    if version != "gemm" or bits != 4:  # noqa: PLR2004 -- what the layout is made for
        raise Unsupported(f"the weights are AWQ of {bits} bits in the layout {version!r}; read are 4 in 'gemm'", HINT)
    return Awq(parts)


def _read_gptq(parts: Parts, settings: Settings) -> Matrix:
    bits = settings.get("bits", 4)
    if type(bits) is not int or bits not in GPTQ_BITS:
        raise Unsupported(f"'bits' in config.json is {bits!r}; GPTQ has {GPTQ_BITS}", HINT)
    return Gptq(parts, bits, adds_one=settings.get("checkpoint_format") != "gptq_v2")


def _read_packed(parts: Parts, settings: Settings) -> Matrix:
    parts.require_matrices("packed codes", "weight_packed")
    parts.require_integers("packed codes", "weight_shape", "weight_zero_point", "weight_g_idx")
    told = find_group(settings).get("num_bits")
    bits = told if told is not None else _guess_bits(parts)
    if type(bits) is not int or bits not in PACKED_BITS:
        raise Unsupported(f"{parts.stem} has packed codes of {bits!r} bits; read are {PACKED_BITS}", HINT)
    return PackedIntegers(parts, bits)


def _guess_bits(parts: Parts) -> int:
    """Return the bits of packed codes from the shapes, as files with several groups of layers need."""
    inputs = int(parts.view("weight_shape").reshape(-1)[-1])
    words = parts.shape("weight_packed")[-1]
    return next((bits for bits in PACKED_BITS if -(-inputs * bits // 32) == words), 0)


def _take_bits(settings: Settings, default: int = 4) -> int:
    found = settings.get("bits", settings.get("num_bits"))
    return found if type(found) is int and found > 0 else default


def _find_own(stem: str, settings: Settings) -> Settings:
    """Return the settings of mlx-lm for a layer: its own, and those of all others."""
    told = settings.get(stem)
    return {**settings, **told} if isinstance(told, Mapping) else settings


def _read_mlx(parts: Parts, settings: Settings) -> Matrix:
    own = _find_own(parts.stem, settings)
    mode, group = own.get("mode") or "affine", own.get("group_size") or 64
    if mode in MX_MODES:
        return MicroScaled(parts, mode)
    if mode != "affine" or type(group) is not int or group < 1:
        raise Unsupported(f"{parts.stem} is quantised as {mode!r} in groups of {group!r}", HINT)
    parts.require("biases" in parts.tensors, f"of {AFFINE_BITS} bits: it has no biases")
    return Affine(parts, group)


SCALED = Format(
    "8 bits with scales",
    "weight",
    frozenset(),
    _read_block,
    may_have=frozenset(["weight_zero_point"]),
    needs_any=SCALES,
    dtypes=frozenset(CODES),
    scales="weight_scale",
    grid=lambda words, _settings, plain: step_integers(plain, words),
)
GLOBAL = frozenset(["weight_global_scale", "weight_scale_2"])
FORMATS: dict[str, tuple[Format, ...]] = {
    "fp8": (
        SCALED,
        Format(
            "FP8 as in DeepSeek-V4", "weight", frozenset(["scale"]), _read_block, dtypes=frozenset(["float8_e4m3fn"])
        ),
        Format(
            "MXFP4 as in DeepSeek-V4",
            "weight",
            frozenset(["scale"]),
            lambda parts, _: PackedFloats(parts, "weight", "scale"),
            dtypes=frozenset(["int8"]),
            bits=lambda _stem, _settings: 4,
            scales="scale",
            grid=lambda _words, _settings, plain: step_floats(plain),
        ),
    ),
    "fbgemm_fp8": (SCALED,),
    "awq": (
        Format(
            "AWQ",
            "qweight",
            frozenset(["qzeros", "scales"]),
            _read_awq,
            bits=lambda _stem, _settings: 4,
            scales="scales",
        ),
    ),
    "gptq": (
        Format(
            "GPTQ",
            "qweight",
            frozenset(["qzeros", "scales"]),
            _read_gptq,
            may_have=frozenset(["g_idx"]),
            bits=lambda _stem, settings: _take_bits(settings),
            scales="scales",
            grid=lambda _words, settings, plain: None if settings.get("desc_act") else plain,
        ),
    ),
    "compressed-tensors": (
        SCALED,
        Format(
            "packed integers",
            "weight_packed",
            frozenset(["weight_scale", "weight_shape"]),
            _read_packed,
            may_have=frozenset(["weight_zero_point", "weight_g_idx"]),
            dtypes=frozenset(["int32"]),
            bits=lambda _stem, settings: _take_bits(find_group(settings)),
            scales="weight_scale",
            grid=lambda words, _settings, plain: None if "weight_g_idx" in words else plain,
        ),
        Format(
            "packed floats",
            "weight_packed",
            frozenset(["weight_scale"]),
            lambda parts, _: PackedFloats(parts),
            may_have=GLOBAL,
            dtypes=frozenset(["uint8"]),
            bits=lambda _stem, _settings: 4,
            scales="weight_scale",
            grid=lambda _words, _settings, plain: step_floats(plain),
        ),
    ),
    "modelopt": (
        SCALED,
        Format(
            "NVFP4",
            "weight",
            frozenset(["weight_scale"]),
            lambda parts, _: PackedFloats(parts, "weight"),
            may_have=GLOBAL,
            dtypes=frozenset(["uint8"]),
            bits=lambda _stem, _settings: 4,
        ),
    ),
    "mlx": (
        Format(
            "mlx",
            "weight",
            frozenset(["scales"]),
            _read_mlx,
            may_have=frozenset(["biases"]),
            dtypes=frozenset(["uint32"]),
            bits=lambda stem, settings: _take_bits(_find_own(stem, settings)),
            scales="scales",
            grid=lambda words, _settings, plain: plain if "biases" in words else step_floats(plain),
        ),
    ),
    "bitsandbytes": (
        *(
            Format(
                kind.upper(),
                "weight",
                frozenset([SIZES, TABLE, state]),
                lambda parts, _settings, kind=kind: TableFloats(parts, kind),  # type: ignore[misc]
                may_have=frozenset([OUTER_SIZES, OUTER_TABLE]),
                dtypes=frozenset(["uint8"]),
                bits=lambda _stem, _settings: 4,
            )
            for kind, state in STATES.items()
        ),
        Format(
            "LLM.int8",
            "weight",
            frozenset([ROW_SCALES]),
            lambda parts, _: RowScaled(parts),
            may_have=frozenset(["weight_format"]),
            dtypes=frozenset(["int8"]),
        ),
    ),
}
"""By the method of quantisation. A weight is read by the first format that takes its tensors."""


def name_method(config: Settings) -> str:
    """Return the method of quantisation of a model, a key of `FORMATS` or another one; empty: its weights are plain.

    mlx-lm names none, and writes the same settings under ``quantization`` and ``quantization_config``.
    """
    if found := find_settings(config):
        return str(found.get("quant_method") or ("mlx" if "group_size" in found else "unknown"))
    return ""


def find_settings(config: Settings) -> Settings:
    """Return what config.json says of the quantisation; empty: nothing."""
    inner = config.get("text_config")
    for place in (config, inner if isinstance(inner, Mapping) else {}):
        found = place.get("quantization_config") or place.get("quantization")
        if isinstance(found, Mapping) and found:
            return found
    return {}


def group_tensors(config: Settings, tensors: Mapping[str, Tensor]) -> dict[str, Matrix]:
    """Return the quantised weights among the tensors of a model, by their names, such as ``model.norm.weight``.

    Args:
        config: the model's config.json.
        tensors: tensors of its files by their names; those of a weight must be together.

    Raises:
        ParallaxError: if tensors of a weight do not fit each other, or have a dtype that only quantised weights have
            and belong to none.
        Unsupported: if a format has settings that are not read.
    """
    formats, settings = FORMATS.get(name_method(config), ()), find_settings(config)
    if name_method(config) == GGUF:
        return _group_blocks(settings, tensors)
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        stem, word = split_name(name)
        layers.setdefault(stem, {})[word] = tensor
    found = {}
    for stem, words in layers.items():
        dtypes = {word: tensor.dtype for word, tensor in words.items()}
        if (one := next((each for each in formats if each.takes(dtypes)), None)) is not None:
            own = {word: tensor for word, tensor in words.items() if word in one.list_words()}
            found[f"{stem}.weight"] = one.read(Parts(stem, own), settings)
    check_left(tensors, found)
    return found


def _group_blocks(settings: Settings, tensors: Mapping[str, Tensor]) -> dict[str, Matrix]:
    """Return the weights that are blocks of a GGUF file; each is one tensor, whose type config.json gives."""
    types = settings.get("types") or {}
    if not isinstance(types, Mapping) or any(type(kind) is not str for kind in types.values()):
        raise Unsupported(f"'types' in config.json is {types!r}, not a table of strings", HINT)
    if not types.keys() & tensors.keys():
        return {}
    from parallax_formats.gguf.blocks import Blocks  # the gguf package takes half a second to import

    words = {name: name.rpartition(".") for name in types.keys() & tensors.keys()}
    return {name: Blocks(Parts(stem, {word: tensors[name]}), types[name]) for name, (stem, _, word) in words.items()}
