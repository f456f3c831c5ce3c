"""The base struct of values that cross between nodes, and their number types with ranges.

Constructing a value checks nothing; decoding one from a frame checks all ranges, in C.
"""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec

from parallax_core.base.ids import SeqId

LARGEST = 2**53 - 1
"""The largest count: up to it, float64 represents every integer exactly."""

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Counter = Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)]
Handle = Annotated[SeqId, msgspec.Meta(ge=0, le=LARGEST)]
Seed = Annotated[int, msgspec.Meta(ge=0)]
"""A seed, in ``range(2**64)``: msgpack has no larger integers."""

LARGEST_FLOAT = sys.float_info.max
Finite = Annotated[float, msgspec.Meta(ge=-LARGEST_FLOAT, le=LARGEST_FLOAT)]
"""A float that is neither infinite nor NaN."""
Positive = Annotated[float, msgspec.Meta(gt=0.0, le=LARGEST_FLOAT)]
Weight = Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST_FLOAT)]
Bias = Annotated[float, msgspec.Meta(le=LARGEST_FLOAT)]
"""A float that may be minus infinity, but not NaN."""


class Value(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A struct encoded as an array of its fields. Holds only values and tuples, so it cannot be part of a cycle."""
