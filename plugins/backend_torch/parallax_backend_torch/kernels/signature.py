"""The C interface of the compiled library, as ctypes declares it; what its functions mean is said in ``csrc``."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p

INTERFACE = 5
"""Version of the C interface; a library that answers another number was built from other sources."""


class WeightRecord(ctypes.Structure):
    """``plx::Weight``."""

    _fields_ = (
        ("kind", c_int32),
        ("unused", c_int32),
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
        ("table", POINTER(TableRecord)),
        ("sinks", c_void_p),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("window", c_int64),
        ("scale", c_float),
        ("cap", c_float),
        ("kind", c_int32),
        ("unused", c_int32),
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
        ("unused", c_int32),
    )


class TurnRecord(ctypes.Structure):
    """``plx::Turn``."""

    _fields_ = (("cos", c_void_p), ("sin", c_void_p), ("half", c_int64))


_WEIGHT, _FLOATS, _COUNT = POINTER(WeightRecord), c_void_p, c_int64
_TABLE, _TURN = POINTER(TableRecord), POINTER(TurnRecord)
_LAYERS, _ATTENTIONS = POINTER(POINTER(LayerRecord)), POINTER(POINTER(AttentionRecord))

FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "plx_interface": (c_int32, ()),
    "plx_isa": (c_char_p, ()),
    "plx_use_plain": (None, (c_int32,)),
    "plx_enlarge": (None, (c_void_p, _COUNT)),
    "plx_threads": (c_int32, ()),
    "plx_set_threads": (None, (c_int32,)),
    "plx_multiply": (None, (_WEIGHT, _FLOATS, _COUNT, _COUNT, _FLOATS, _FLOATS, _COUNT)),
    "plx_multiply_gated": (None, (_WEIGHT, _FLOATS, _COUNT, _COUNT, _FLOATS, c_int32)),
    "plx_gather": (c_int64, (_WEIGHT, c_void_p, _COUNT, _FLOATS)),
    "plx_normalize": (None, (_FLOATS, _COUNT, _FLOATS, _FLOATS, c_float, c_float, _COUNT, _COUNT, _COUNT, _FLOATS)),
    "plx_rotate": (None, (_FLOATS, _COUNT, _FLOATS, _FLOATS, _COUNT, _COUNT, _COUNT, _COUNT)),
    "plx_gate": (None, (c_int32, _FLOATS, _COUNT, _FLOATS, _COUNT, _COUNT, _COUNT, _FLOATS)),
    "plx_find_largest": (None, (_FLOATS, _COUNT, _COUNT, c_void_p, c_void_p)),
    "plx_read": (c_float, (_FLOATS, _COUNT)),
    "plx_attend": (None, (POINTER(AttentionRecord),)),
    "plx_layers": (None, (_LAYERS, _ATTENTIONS, _COUNT, _TABLE, _TURN, c_void_p, _FLOATS, _COUNT, _FLOATS, _FLOATS)),
    "plx_store": (None, (_FLOATS, _COUNT, c_void_p, _COUNT, _COUNT, c_int32, c_void_p)),
}
"""What each function returns and takes."""


def declare_functions(library: ctypes.CDLL) -> None:
    """Tell ctypes the types of all functions.

    Raises:
        AttributeError: the library lacks one.
    """
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
