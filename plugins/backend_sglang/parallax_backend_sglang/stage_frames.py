"""The messages between a worker and a stage's child process, framed as those of an engine."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import msgspec

from parallax_backend_sglang.frames import LENGTH, receive_body
from parallax_core.api import Answer, Edit, MaskSource, Row, StageBatch, StageInfo, StageResult, Tensor, Unit


class PackedTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class LoadStage(msgspec.Struct, frozen=True, tag=0, array_like=True):
    """Load layers; answered by `Progressed` messages, and `Loaded` or `Raised`."""

    architecture: str
    """The architecture in the model's config.json."""
    model: str
    """The folder of the model."""
    arguments: dict[str, Any]
    """The arguments of SGLang's `ServerArgs`."""
    info: StageInfo
    """The stage as the worker plans it."""


class Progressed(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """The progress of a task of loading; see `parallax_core.api.Progress`."""

    task: str
    done: int
    total: int | None
    unit: Unit


class Loaded(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """The stage can run."""

    info: StageInfo


class Edits(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """Edit sequences; answered by `Done` or `Raised`."""

    edits: msgspec.Raw
    """A tuple of `parallax_core.api.Edit`, which the child decodes when it can answer that it is not one."""


class Batch(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """Run a step; answered by `Done` or `Raised`."""

    rows: msgspec.Raw
    """A tuple of `parallax_core.api.Row`, likewise."""
    hidden: tuple[PackedTensor, ...]
    has_masks: bool
    """Whether `Masks` or `Raised` follow, while the step runs."""


class Masks(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """The masks of the step that runs, by the number of their output."""

    masks: dict[int, PackedTensor]


class Done(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """The result of a step; empty after edits."""

    answers: tuple[Answer, ...] = ()
    tensors: tuple[PackedTensor, ...] = ()
    free: tuple[int, ...] = ()
    sampling_s: float = 0.0


class Raised(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """An error; see `parallax_backend_sglang.stage_errors`."""

    kind: str
    """The name of its type."""
    message: str
    hint: str = ""
    numbers: tuple[int, ...] = ()
    """The sequences at fault, or the numbers of `OutOfPages`."""


StageFrame = LoadStage | Progressed | Loaded | Edits | Batch | Masks | Done | Raised
ENCODER = msgspec.msgpack.Encoder()
DECODER: msgspec.msgpack.Decoder[StageFrame] = msgspec.msgpack.Decoder(StageFrame)
EDITS: msgspec.msgpack.Decoder[tuple[Edit, ...]] = msgspec.msgpack.Decoder(tuple[Edit, ...])
ROWS: msgspec.msgpack.Decoder[tuple[Row, ...]] = msgspec.msgpack.Decoder(tuple[Row, ...])


def send(link: socket.socket, message: StageFrame) -> None:
    """Send a message.

    Raises:
        OSError: if the other end is closed.
    """
    body = ENCODER.encode(message)
    link.sendall(LENGTH.pack(len(body)) + body)


def wait(link: socket.socket) -> StageFrame | None:
    """Wait for a message; return None when the other end is closed."""
    body = receive_body(link)
    return DECODER.decode(body) if body else None


def pack_edits(edits: Sequence[Edit]) -> Edits:
    """Return the message for edits."""
    return Edits(msgspec.Raw(ENCODER.encode(tuple(edits))))


def pack_batch(batch: StageBatch) -> Batch:
    """Return the message for a batch, apart from its masks."""
    rows = msgspec.Raw(ENCODER.encode(batch.rows))
    return Batch(rows, tuple(map(pack_tensor, batch.hidden)), batch.masks is not None)


def unpack_batch(message: Batch, masks: MaskSource | None) -> StageBatch:
    """Return the batch in a message.

    Raises:
        ValueError, msgspec.ValidationError: if it cannot be one.
    """
    return StageBatch(ROWS.decode(message.rows), tuple(map(unpack_tensor, message.hidden)), masks=masks)


def pack_tensor(tensor: Tensor) -> PackedTensor:
    """Return a tensor as a message has it."""
    return PackedTensor(tensor.dtype, tensor.shape, bytes(tensor.data))


def unpack_tensor(packed: PackedTensor) -> Tensor:
    """Return the tensor in a message."""
    return Tensor(packed.dtype, packed.shape, packed.data)


def pack_result(result: StageResult) -> Done:
    """Return the message for a result."""
    return Done(result.answers, tuple(map(pack_tensor, result.tensors)), result.free, result.sampling_s)


def unpack_result(done: Done) -> StageResult:
    """Return the result in a message."""
    return StageResult(done.answers, tuple(map(unpack_tensor, done.tensors)), done.free, done.sampling_s)
