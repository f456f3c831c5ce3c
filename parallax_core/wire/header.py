"""The headers of frames: messages whose tensors are entries that name buffers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.contracts.value import Count, Value
from parallax_core.wire.messages import (
    Failure,
    Heartbeat,
    Hello,
    Mask,
    MaskOf,
    Membership,
    Result,
    ResultOf,
    Step,
    StepOf,
    Welcome,
)

MOST_AXES = 8


class TensorEntry(Value, frozen=True):
    """A tensor whose data are a buffer of the frame."""

    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_AXES)]
    buffer: Count
    """An index into the buffers of the frame; no two entries share one, and none is left over."""


class StepHeader(StepOf[TensorEntry], frozen=True, tag=Step.__struct_config__.tag):
    """The header of a `Step`."""


class ResultHeader(ResultOf[TensorEntry], frozen=True, tag=Result.__struct_config__.tag):
    """The header of a `Result`."""


class MaskHeader(MaskOf[TensorEntry], frozen=True, tag=Mask.__struct_config__.tag):
    """The header of a `Mask`."""


Header = StepHeader | ResultHeader | Failure | MaskHeader | Heartbeat | Hello | Welcome | Membership
"""What has no tensors is its own header."""
