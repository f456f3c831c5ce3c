"""Declares the C interface of the compiled library for ctypes; ``csrc`` documents its functions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p, sizeof
from typing import Any

INTERFACE = 10
"""The version of the C interface; a library with another version was built from other sources."""


class WeightRecord(ctypes.Structure):
    """``plx::Weight``."""

    _fields_ = (
        ("kind", c_int32),
        ("narrow", c_int32),
        ("width", c_int64),
        ("height", c_int64),
        ("data", c_void_p),
        ("bias", c_void_p),
    )


class TableRecord(ctypes.Structure):
    """``plx::Table``."""

    _fields_ = (
        ("pages", c_void_p),
        ("offsets", c_void_p),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("rows", c_int64),
        ("page_size", c_int64),
    )


class AttentionRecord(ctypes.Structure):
    """``plx::Attention``."""

    _fields_ = (
        ("query", c_void_p),
        ("query_stride", c_int64),
        ("out", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_scales", c_void_p),
        ("value_scales", c_void_p),
        ("table", POINTER(TableRecord)),
        ("sinks", c_void_p),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("window", c_int64),
        ("scale", c_float),
        ("cap", c_float),
        ("kind", c_int32),
        ("narrow", c_int32),
    )


class NormRecord(ctypes.Structure):
    """``plx::Norm``."""

    _fields_ = (("weight", c_void_p), ("eps", c_float), ("offset", c_float))


class LayerRecord(ctypes.Structure):
    """``plx::Layer``."""

    _fields_ = (
        ("into", POINTER(WeightRecord)),
        ("back", POINTER(WeightRecord)),
        ("up", POINTER(WeightRecord)),
        ("down", POINTER(WeightRecord)),
        ("attention_norm", NormRecord),
        ("mixer_norm", NormRecord),
        ("query_norm", NormRecord),
        ("key_norm", NormRecord),
        ("gate", c_int32),
        ("adapted", c_int32 * 4),
        ("unused", c_int32),
    )


class RopeRecord(ctypes.Structure):
    """``plx::Rope``."""

    _fields_ = (("cos", c_void_p), ("sin", c_void_p), ("half", c_int64))


class DrawRecord(ctypes.Structure):
    """``plx::Draw``."""

    _fields_ = (
        ("row", c_int64),
        ("top_k", c_int64),
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("key", c_uint32),
        ("unused", c_uint32),
    )


class LowRankRecord(ctypes.Structure):
    """``plx::LowRank``."""

    _fields_ = (
        ("a", c_void_p),
        ("b", c_void_p),
        ("rank", c_int64),
        ("width", c_int64),
        ("height", c_int64),
        ("column", c_int64),
        ("scale", c_float),
        ("kind", c_int32),
    )


class AdapterRecord(ctypes.Structure):
    """``plx::Adapter``."""

    _fields_ = (("parts", c_void_p), ("begins", c_void_p))


class AdapterRowsRecord(ctypes.Structure):
    """``plx::AdapterRows``."""

    _fields_ = (("adapter", c_void_p), ("places", c_void_p), ("count", c_int64))


class AdapterStepRecord(ctypes.Structure):
    """``plx::AdapterStep``."""

    _fields_ = (("groups", c_void_p), ("count", c_int64))


RECORDS: dict[str, type[ctypes.Structure]] = {
    "plx_weight_bytes": WeightRecord,
    "plx_table_bytes": TableRecord,
    "plx_attention_bytes": AttentionRecord,
    "plx_norm_bytes": NormRecord,
    "plx_layer_bytes": LayerRecord,
    "plx_rope_bytes": RopeRecord,
    "plx_draw_bytes": DrawRecord,
    "plx_low_rank_bytes": LowRankRecord,
    "plx_adapter_bytes": AdapterRecord,
    "plx_adapter_rows_bytes": AdapterRowsRecord,
    "plx_adapter_step_bytes": AdapterStepRecord,
}
"""Each record, by the function that returns its size in the library."""

_WEIGHT, _FLOATS, _COUNT = POINTER(WeightRecord), c_void_p, c_int64
_TABLE, _ROPE = POINTER(TableRecord), POINTER(RopeRecord)
_LAYERS, _ATTENTIONS = POINTER(POINTER(LayerRecord)), POINTER(POINTER(AttentionRecord))
_ADAPTERS = POINTER(AdapterStepRecord)

FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "plx_interface": (c_int32, ()),
    **dict.fromkeys(RECORDS, (c_int64, ())),
    "plx_isa": (c_char_p, ()),
    "plx_list_isas": (c_char_p, (c_int32,)),
    "plx_use_isa": (c_int32, (c_char_p,)),
    "plx_enlarge": (None, (c_void_p, _COUNT)),
    "plx_threads": (c_int32, ()),
    "plx_set_threads": (None, (c_int32,)),
    "plx_gather": (c_int64, (_WEIGHT, c_void_p, _COUNT, _FLOATS)),
    "plx_normalize": (None, (_FLOATS, _COUNT, _FLOATS, _FLOATS, c_float, c_float, _COUNT, _COUNT, _COUNT, _FLOATS)),
    "plx_rotate": (None, (_FLOATS, _COUNT, _FLOATS, _FLOATS, _COUNT, _COUNT, _COUNT, _COUNT)),
    "plx_gate": (None, (c_int32, _FLOATS, _COUNT, _FLOATS, _COUNT, _COUNT, _COUNT, _FLOATS)),
    "plx_find_largest": (None, (_FLOATS, _COUNT, _COUNT, c_void_p, c_void_p)),
    "plx_forbid": (None, (c_void_p, c_void_p, _COUNT, _COUNT, _FLOATS)),
    "plx_read": (c_float, (_FLOATS, _COUNT)),
    "plx_store": (None, (_FLOATS, _COUNT, c_void_p, _COUNT, _COUNT, _COUNT, c_int32, c_void_p, c_void_p)),
}
"""The result and argument types of each function."""

OPERATIONS: dict[str, tuple[type, ...]] = {
    "plx_multiply": (_WEIGHT, _FLOATS, _COUNT, _COUNT, _FLOATS, _FLOATS, _COUNT),
    "plx_multiply_gated": (_WEIGHT, _FLOATS, _COUNT, _COUNT, _FLOATS, c_int32),
    "plx_draw": (POINTER(DrawRecord), _COUNT, _FLOATS, _COUNT, c_void_p),
    "plx_attend": (POINTER(AttentionRecord),),
    "plx_layers": (_LAYERS, _ATTENTIONS, _COUNT, _TABLE, _ROPE, c_void_p, _FLOATS, _COUNT, _FLOATS, _FLOATS, _ADAPTERS),
    "plx_adapt": (_ADAPTERS, c_int32, _FLOATS, _COUNT, _FLOATS, _COUNT),
}
"""The argument types of the functions that allocate memory and return ``plx::Status``."""


def declare_functions(library: ctypes.CDLL) -> None:
    """Declare the types of all functions; an operation without enough memory then raises `MemoryError`.

    Raises:
        AttributeError: the library lacks a function.
    """
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    for name, arguments in OPERATIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes, function.errcheck = c_int32, arguments, _check_status


def find_misfit(library: ctypes.CDLL) -> str:
    """Return the name of a record whose size differs from the library's; empty if all sizes agree."""
    return next((kind.__name__ for name, kind in RECORDS.items() if getattr(library, name)() != sizeof(kind)), "")


def _check_status(status: int, function: Any, arguments: tuple[Any, ...]) -> int:  # noqa: ANN401, ARG001 -- as ctypes calls it
    if status:
        raise MemoryError("there is not enough memory for the intermediate results of a step")
    return status
