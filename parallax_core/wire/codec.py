"""Encodes messages as frames and decodes them. Zero copy: tensor data are borrowed in both directions.

A frame is a header and the buffers it refers to. A header is one byte, the version of the format, and the message in
msgpack, with a `TensorEntry` in place of each tensor. The transport defines how frames are sent over a connection.
"""

from __future__ import annotations

import msgspec

from parallax_core.contracts.tensor import Data, Tensor
from parallax_core.contracts.transport import Frame, FrameLimits
from parallax_core.wire.bounds import check_message
from parallax_core.wire.errors import BadFrame, WireVersionMismatch
from parallax_core.wire.header import Header, MaskHeader, ResultHeader, StepHeader, TensorEntry
from parallax_core.wire.messages import Mask, Message, Result, Step
from parallax_core.wire.versions import find_versions

WIRE_VERSION = 13
"""Raised whenever the bytes of any message change; nodes of different versions refuse to connect."""

VERSION_BYTE = bytes([WIRE_VERSION])
ENCODER = msgspec.msgpack.Encoder()
DECODER: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Header)


DEFAULT_LIMITS = FrameLimits()


def encode(message: Message) -> Frame:
    """Encode ``message`` as a frame whose buffers are views of its tensors' data.

    The same message gives the same bytes. Nothing is checked; `decode` checks.
    """
    buffers: list[Data] = []
    header = pack_message(message, buffers)
    return Frame(VERSION_BYTE + ENCODER.encode(header), tuple(buffers))


def decode(frame: Frame, limits: FrameLimits = DEFAULT_LIMITS) -> Message:
    """Decode a frame; the tensors of the message are read-only views of its buffers.

    Raises:
        WireVersionMismatch: if its version differs from this node's.
        BadFrame: if it exceeds ``limits``, is malformed, or its message is invalid.
    """
    try:
        limits.check(frame)
    except ValueError as error:
        raise BadFrame(str(error)) from error
    if frame.header[0] != WIRE_VERSION:
        raise WireVersionMismatch(frame.header[0], WIRE_VERSION, find_versions(frame.header))
    try:
        header = DECODER.decode(memoryview(frame.header)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(str(error)) from error
    message = unpack_header(header, frame.buffers)
    check_message(message)
    return message


def pack_message(message: Message, buffers: list[Data]) -> Header:
    """Return the header of ``message``, and append the data of its tensors to ``buffers``."""
    match message:
        case Step(lease, epoch, step, edits, rows, hidden, embeddings):
            packed = pack_tensors(hidden, buffers)
            return StepHeader(lease, epoch, step, edits, rows, packed, pack_tensors(embeddings, buffers))
        case Result(lease, epoch, step, stage, answers, free, seconds, tensors, sampling_s):
            packed = pack_tensors(tensors, buffers)
            return ResultHeader(lease, epoch, step, stage, answers, free, seconds, packed, sampling_s)
        case Mask(lease, epoch, step, row, bits, output):
            [entry] = pack_tensors((bits,), buffers)
            return MaskHeader(lease, epoch, step, row, entry, output)
        case _:
            return message


def pack_tensors(tensors: tuple[Tensor, ...], buffers: list[Data]) -> tuple[TensorEntry, ...]:
    """Return entries for ``tensors``, and append their data to ``buffers``."""
    first = len(buffers)
    buffers.extend(view_bytes(tensor.data) for tensor in tensors)
    return tuple(TensorEntry(tensor.dtype, tensor.shape, first + i) for i, tensor in enumerate(tensors))


def view_bytes(data: Data) -> memoryview:
    """Return a read-only view of the bytes of ``data``."""
    view = memoryview(data)
    if not view.nbytes:
        return memoryview(b"")  # a view with a zero in its shape cannot be cast
    return view.cast("B").toreadonly()


def unpack_header(header: Header, buffers: tuple[Data, ...]) -> Message:
    """Return the message of a header.

    Raises:
        BadFrame: if its entries do not match the buffers.
    """
    match header:
        case StepHeader(lease, epoch, step, edits, rows, hidden, embeddings):
            tensors = unpack_entries((*hidden, *embeddings), buffers)
            count = len(hidden)
            return Step(lease, epoch, step, edits, rows, tensors[:count], tensors[count:])
        case ResultHeader(lease, epoch, step, stage, answers, free, seconds, entries, sampling_s):
            tensors = unpack_entries(entries, buffers)
            return Result(lease, epoch, step, stage, answers, free, seconds, tensors, sampling_s)
        case MaskHeader(lease, epoch, step, row, entry, output):
            [bits] = unpack_entries((entry,), buffers)
            return Mask(lease, epoch, step, row, bits, output)
        case _:
            unpack_entries((), buffers)
            return header


def unpack_entries(entries: tuple[TensorEntry, ...], buffers: tuple[Data, ...]) -> tuple[Tensor, ...]:
    """Return the tensors of ``entries``, each a view of its buffer."""
    if sorted([entry.buffer for entry in entries]) != list(range(len(buffers))):
        raise BadFrame(f"its {len(entries)} tensors do not use each of its {len(buffers)} buffers once")
    try:
        return tuple(Tensor(entry.dtype, entry.shape, view_bytes(buffers[entry.buffer])) for entry in entries)
    except ValueError as error:
        raise BadFrame(str(error)) from error
