"""The messages between nodes.

Every message between a head and its stages carries its lease and epoch: a receiver discards messages of an older
epoch. Counts lie in ``range(2**53)``, so that every language can represent them.

A message with tensors is defined once, generically: with `Tensor` for the message itself, and with
`parallax_core.wire.header.TensorEntry` for the header of its frame.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from parallax_core.base.errors import LossCause
from parallax_core.contracts.service_message import ServiceMessage
from parallax_core.contracts.stage import Answer, Edit, Row
from parallax_core.contracts.tensor import Tensor
from parallax_core.contracts.value import LARGEST, Count, Counter, Handle
from parallax_core.wire.api_data import ApiData
from parallax_core.wire.base import Name, StageMessage, Text
from parallax_core.wire.membership import Assign, HandOver, Hop, Join, Leave, Linked, Loading, Ready, Refusal, Release

T = TypeVar("T")

Purpose = Annotated[str, msgspec.Meta(max_length=64)]
"""What a link is for: to join a head, or to carry the steps of a stage (empty), or one of the purposes that node
services serve, such as ``probe``."""


class StepOf(StageMessage, Generic[T], frozen=True):
    """The fields of a `Step` with tensors of type T."""

    step: Count
    edits: tuple[Edit, ...] = ()
    """Edits to apply in order, before the rows run."""
    rows: tuple[Row, ...] = ()
    """Empty: the step only edits, but keeps its place in the order."""
    hidden: tuple[T, ...] = ()
    """The previous stage's output, each of shape [tokens of all rows in order, width]; empty for stage 0."""
    embeddings: tuple[T, ...] = ()
    """For the spans of the rows, each of shape [length, width]; stage 0 need not pass them on."""


class Step(StepOf[Tensor], frozen=True, tag=0):
    """Edits and rows, from the head to stage 0 and from each stage to the next: one ordered channel."""


class ResultOf(StageMessage, Generic[T], frozen=True):
    """The fields of a `Result` with tensors of type T."""

    step: Count
    stage: Count
    """The index of the sending stage in the pipeline, counted from 0."""
    answers: tuple[Answer, ...] = ()
    """One for each output of each row, in row order; empty from a stage before the last."""
    free: tuple[Count, ...] = ()
    """Free pages of each pool of the stage after the step."""
    seconds: Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST)] = 0.0
    """How long the stage computed, in seconds."""
    tensors: tuple[T, ...] = ()
    """The tensors that the answers refer to."""
    sampling_s: Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST)] = 0.0
    """The part of ``seconds`` spent on sampling; 0: not measured."""


class Result(ResultOf[Tensor], frozen=True, tag=1):
    """Reports a finished step, directly to the head: any stage with its free pages, the last also with the answers."""


class Failure(StageMessage, frozen=True, tag=2):
    """Reports that a step failed on a stage, directly to the head.

    The stage discards all later steps of the epoch until one has the number of the failed step again: it comes from a
    head that knows of the failure, and that the stage is as it was before the rows of that step.
    """

    step: Count
    stage: Count
    message: Text
    """A description of the failure."""
    lost: bool = False
    """False: every sequence is as before the step, and the stage goes on. True: the state of the stage is unknown."""
    sequences: tuple[Handle, ...] = ()
    """The sequences of the step that are at fault; empty: all of them, or unknown."""
    at_fault: bool = True
    """If ``lost``, whether this stage is the one at fault; false: one of its links ended, so it may be another."""
    cause: LossCause = "unknown"
    """The cause of the loss; see `LossCause`."""
    peer: Name = ""
    """The node at the other end of the link that ended; empty: no link ended, or its name is not known."""


class MaskOf(StageMessage, Generic[T], frozen=True):
    """The fields of a `Mask` with a tensor of type T."""

    step: Count
    row: Count
    """An index into `Step.rows`."""
    bits: T
    """uint8 of shape [(vocabulary + 7) // 8]: bit ``i % 8`` (1: the lowest) of byte ``i // 8`` allows token ``i``."""
    output: Count = 0
    """An index into `Row.outputs`: a draw that waits for a mask."""


class Mask(MaskOf[Tensor], frozen=True, tag=3):
    """The tokens that a draw may take, sent by the head directly to the last stage.

    It may come before its `Step`, unless both come on one link: then it follows it.
    """


class Heartbeat(StageMessage, frozen=True, tag=4):
    """Sent by a live stage to the head at regular intervals. Holds no time of day, since clocks may differ."""

    step: Counter
    """The last finished step of the epoch; -1: none."""
    stage: Count
    steps: Count = 0
    """Steps finished since the stage opened."""
    tokens: Count = 0
    """Tokens computed since the stage opened."""
    queued: Count = 0
    """Steps received and not finished."""
    sequences: Count = 0
    """Open sequences."""
    running: Count = 0
    """The number of the step being computed; 0: none."""
    running_s: Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST)] = 0.0
    """Seconds for which that step has been computed, not counting its wait in the queue or for masks."""


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """The first frame on a connection, from the node that opened it."""

    wire: Count
    """The version of the wire format that the sender prefers; each frame states the version it uses."""
    node: Name
    """The name of the sender in the cluster; at most 256 characters."""
    software: Name
    """The version of Parallax on the sender."""
    pages: Count = 0
    """The version of the sender's rules for counting pages: `parallax_core.pages.version.PAGES_VERSION`."""
    purpose: Purpose = ""
    """What the link is for; see `Purpose`."""


class Welcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """The answer to a `Hello`, with the same fields."""

    wire: Count
    node: Name
    software: Name
    pages: Count = 0


DropReason = Literal["unknown", "too many"]


class UnsupportedMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=46):
    """Tells a node that a message of its was dropped. It is never answered itself."""

    kind: Count
    """The tag of the message."""
    reason: DropReason = "unknown"
    """Whether this node has no service for such messages, or got more of them than it takes in a second."""


Membership = Join | Assign | Loading | Ready | Refusal | Hop | Linked | Release | Leave | HandOver
CoreMessage = Step | Result | Failure | Mask | Heartbeat | Hello | Welcome | Membership | ApiData | UnsupportedMessage
"""The messages of core."""
Message = CoreMessage | ServiceMessage
"""Any message; those of a service are known only to a channel that was told of them."""
