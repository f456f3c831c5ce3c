"""The headers of frames: messages with entries that refer to buffers in place of tensors."""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.contracts.value import Count, Value
from parallax_core.wire.api_data import ApiData
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
    UnsupportedMessage,
    Welcome,
)

MOST_AXES = 8
"""The most axes of a tensor."""


class TensorEntry(Value, frozen=True):
    """A tensor whose data are in a buffer of the frame."""

    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_AXES)]
    buffer: Count
    """An index into the buffers of the frame; every buffer belongs to exactly one entry."""


class StepHeader(StepOf[TensorEntry], frozen=True, tag=Step.__struct_config__.tag):
    """The header of a `Step`."""


class ResultHeader(ResultOf[TensorEntry], frozen=True, tag=Result.__struct_config__.tag):
    """The header of a `Result`."""


class MaskHeader(MaskOf[TensorEntry], frozen=True, tag=Mask.__struct_config__.tag):
    """The header of a `Mask`."""


Header = (
    StepHeader
    | ResultHeader
    | Failure
    | MaskHeader
    | Heartbeat
    | Hello
    | Welcome
    | Membership
    | ApiData
    | UnsupportedMessage
)
"""A message without tensors is its own header."""
