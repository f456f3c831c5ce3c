"""What the values that cross between nodes are made of: a base for their structs, and numbers with their ranges.

Constructing a value checks nothing; reading one from a frame checks all of this, in C.
"""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec

from parallax_core.base.ids import SeqId

LARGEST = 2**53 - 1
"""The largest count, and the largest integer a float64 holds with all below it."""

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Counter = Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)]
Handle = Annotated[SeqId, msgspec.Meta(ge=0, le=LARGEST)]
Seed = Annotated[int, msgspec.Meta(ge=0)]
"""In ``range(2**64)``: msgpack has no larger integers."""

LARGEST_FLOAT = sys.float_info.max
Finite = Annotated[float, msgspec.Meta(ge=-LARGEST_FLOAT, le=LARGEST_FLOAT)]
"""Neither infinite nor NaN."""
Positive = Annotated[float, msgspec.Meta(gt=0.0, le=LARGEST_FLOAT)]
Weight = Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST_FLOAT)]
Bias = Annotated[float, msgspec.Meta(le=LARGEST_FLOAT)]
"""Possibly minus infinity, never NaN."""


class Value(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Written as an array of its fields. Made of values and tuples only, so it cannot be part of a cycle."""
