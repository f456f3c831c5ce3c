"""What nodes say to each other, named by what it carries.

Everything but the greeting carries the lease it belongs to and the epoch it was said in: a receiver discards what is
of an older epoch. Counts lie in ``range(2**53)``, so that every language can hold them.

A message that carries tensors is written down once, for any type of them: `Tensor` in the message itself, and
`parallax_core.wire.header.Entry` in the header of its frame.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

import msgspec

from parallax_core.base.errors import LossCause
from parallax_core.contracts.stage import Answer, Edit, Row
from parallax_core.contracts.tensor import Tensor
from parallax_core.contracts.value import LARGEST, Count, Counter, Handle
from parallax_core.wire.base import Leased, Name
from parallax_core.wire.membership import Assign, Hop, Join, Linked, Loading, Ready, Refusal, Release

T = TypeVar("T")


class StepOf(Leased, Generic[T], frozen=True):
    """The fields of a `Step` with tensors of type T."""

    step: Count
    edits: tuple[Edit, ...] = ()
    """To be applied in order, before the rows run."""
    rows: tuple[Row, ...] = ()
    """None: the step only edits, and takes its place in the order."""
    hidden: tuple[T, ...] = ()
    """What the stage before gave, each of shape [tokens of all rows in order, width]; none on the way to stage 0."""
    embeddings: tuple[T, ...] = ()
    """For the spans of the rows, each of shape [length, width]; stage 0 need not pass them on."""


class Step(StepOf[Tensor], frozen=True, tag=0):
    """Edits and rows, from the head to stage 0 and from each stage to the next: one ordered channel."""


class ResultOf(Leased, Generic[T], frozen=True):
    """The fields of a `Result` with tensors of type T."""

    step: Count
    stage: Count
    """Which stage of the pipeline speaks, counted from 0."""
    answers: tuple[Answer, ...] = ()
    """One for each output of each row, in row order; none from a stage before the last."""
    free: tuple[Count, ...] = ()
    """Free pages of each pool of the stage after the step."""
    seconds: Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST)] = 0.0
    """How long the stage computed."""
    tensors: tuple[T, ...] = ()
    """Those the answers name."""


class Result(ResultOf[Tensor], frozen=True, tag=1):
    """A stage has finished a step: the last one with the answers, any with its page counts; straight to the head."""


class Failure(Leased, frozen=True, tag=2):
    """A step failed on a stage; straight to the head.

    The stage discards all later steps of the epoch, until one has the number of the failed one again: it comes from a
    head that knows of the failure, and that the stage holds what it held before the rows of that step.
    """

    step: Count
    stage: Count
    message: str
    """What happened, in words; at most 4096 characters."""
    lost: bool = False
    """False: every row is at its start, and the stage goes on. True: nothing more is known of what it holds."""
    sequences: tuple[Handle, ...] = ()
    """Of the rows of the step, those at fault; empty: all of them, or it is not known which."""
    at_fault: bool = True
    """Whether it is this stage that is lost, where one is; false: a link of it has ended, so it may be another."""
    cause: LossCause = "unknown"
    """Why it is lost; see `LossCause`."""
    peer: Name = ""
    """The node at the other end of the link that has ended; empty: none has, or its name is not known."""


class MaskOf(Leased, Generic[T], frozen=True):
    """The fields of a `Mask` with a tensor of type T."""

    step: Count
    row: Count
    """An index into `Step.rows`."""
    bits: T
    """uint8 of shape [(vocabulary + 7) // 8]: bit ``i % 8`` (1: the lowest) of byte ``i // 8`` allows token ``i``."""


class Mask(MaskOf[Tensor], frozen=True, tag=3):
    """Which tokens a row may draw, from the head to the last stage, any time before the draw."""


class Heartbeat(Leased, frozen=True, tag=4):
    """A stage is alive; straight to the head, every so often. Says nothing of the time, which nodes do not share."""

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
    """Sequences open."""
    running: Count = 0
    """The step of the epoch that is being computed; 0: none."""
    running_s: Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST)] = 0.0
    """For how many seconds it has been computed. What a step waits for before that does not count: its turn, masks."""


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """The first frame on a connection, from the node that made it."""

    wire: Count
    """The version of the wire format the sender would rather speak; its frames say which one it does."""
    node: Name
    """The name of the sender in the cluster; at most 256 characters."""
    software: Name
    """The version of Parallax the sender runs."""
    pages: Count = 0
    """The version of the rules by which the sender counts pages: `parallax_core.pages.version.PAGES_VERSION`."""


class Welcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """The answer to a `Hello`; its fields are the same."""

    wire: Count
    node: Name
    software: Name
    pages: Count = 0


Membership = Join | Assign | Loading | Ready | Refusal | Hop | Linked | Release
Message = Step | Result | Failure | Mask | Heartbeat | Hello | Welcome | Membership
