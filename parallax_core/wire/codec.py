"""Encodes messages as frames and decodes them. Zero copy: tensor data are borrowed in both directions.

A frame is a header and the buffers it refers to. A header is one byte, the version of the format, and the message in
msgpack, with a `TensorEntry` in place of each tensor. The transport defines how frames are sent over a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import get_args

import msgspec

from parallax_core.contracts.service_message import RESERVED, TAGS_OF_ONE, ServiceMessage, service_tag
from parallax_core.contracts.tensor import ITEM_BYTES, Data, Tensor
from parallax_core.contracts.transport import Frame, FrameLimits
from parallax_core.wire.bounds import check_message
from parallax_core.wire.errors import BadFrame, UnknownMessage, WireVersionMismatch
from parallax_core.wire.header import Header, MaskHeader, ResultHeader, StepHeader, TensorEntry
from parallax_core.wire.messages import CoreMessage, Mask, Message, Result, Step
from parallax_core.wire.versions import find_tag, find_versions

WIRE_VERSION = 16
"""Raised whenever the bytes of any message change; nodes of different versions refuse to connect."""

VERSION_BYTE = bytes([WIRE_VERSION])
ENCODER = msgspec.msgpack.Encoder()
DECODER: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Header)


DEFAULT_LIMITS = FrameLimits()
OWN = "parallax-"
"""How the names of our own distributions begin."""
Kinds = Mapping[int, type[ServiceMessage]]
"""The messages of services that a channel takes, by their tags."""
NO_KINDS: Kinds = MappingProxyType({})
CORE_TAGS = frozenset(kind.__struct_config__.tag for kind in get_args(CoreMessage))
"""The tags of core's messages."""


def encode(message: Message) -> Frame:
    """Encode ``message`` as a frame whose buffers are views of its tensors' data.

    The same message gives the same bytes. Nothing but the size of a service's message is checked; `decode` checks.

    Raises:
        ValueError: if the message of a service is larger than it may be.
    """
    buffers: list[Data] = []
    header = VERSION_BYTE + ENCODER.encode(pack_message(message, buffers))
    if isinstance(message, ServiceMessage) and len(header) > message.most_bytes:
        raise ValueError(say_size(type(message), len(header)))
    return Frame(header, tuple(buffers))


def decode(frame: Frame, limits: FrameLimits = DEFAULT_LIMITS, kinds: Kinds = NO_KINDS) -> Message:
    """Decode a frame; the tensors of the message are read-only views of its buffers.

    Besides core's messages, it reads those of ``kinds``.

    Raises:
        WireVersionMismatch: if its version differs from this node's.
        UnknownMessage: if its tag is neither core's nor in ``kinds``.
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
        tag = find_tag(frame.header)
        if tag is None or tag in CORE_TAGS:
            raise BadFrame(str(error)) from error
        return decode_service(frame, tag, kinds)
    message = unpack_header(header, frame.buffers)
    check_message(message)
    return message


def decode_service(frame: Frame, tag: int, kinds: Kinds) -> ServiceMessage:
    """Decode the frame of a service's message; see `decode`. Its size is checked before its fields are read."""
    if (kind := kinds.get(tag)) is None:
        raise UnknownMessage(tag)
    if len(frame.header) > kind.most_bytes:
        raise BadFrame(say_size(kind, len(frame.header)))
    unpack_entries((), frame.buffers)
    try:
        message = _find_decoder(kind).decode(memoryview(frame.header)[1:])
        message.check()
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadFrame(str(error)) from error
    return message


def index_kinds(kinds: Iterable[type[ServiceMessage]]) -> dict[int, type[ServiceMessage]]:
    """Return kinds of messages by their tags.

    Raises:
        ValueError: if a tag is no number, or that of two messages.
    """
    found: dict[int, type[ServiceMessage]] = {}
    for kind in kinds:
        if (tag := find_number(kind)) in CORE_TAGS:
            raise ValueError(f"the message {kind.__name__} has the tag {tag}, which is one of core's")
        if found.setdefault(tag, kind) is not kind:
            raise ValueError(f"the messages {found[tag].__name__} and {kind.__name__} have the same tag, {tag}")
    return found


def find_number(kind: type[ServiceMessage]) -> int:
    """Return the tag of a kind of messages.

    Raises:
        ValueError: if it is no number.
    """
    if not isinstance(tag := kind.__struct_config__.tag, int) or tag < 0:
        raise ValueError(f"the tag of the message {kind.__name__} is {tag!r}, not a number")
    return tag


def check_tag(kind: type[ServiceMessage], distribution: str) -> None:
    """Check that a distribution may give a kind of messages its tag.

    Raises:
        ValueError: if not.
    """
    first = service_tag(distribution, 0)
    is_reserved = (tag := find_number(kind)) < RESERVED and distribution.startswith(OWN)
    if not (is_reserved or first <= tag < first + TAGS_OF_ONE):
        raise ValueError(f"the message {kind.__name__} has the tag {tag}, which is not one of those of {distribution}")


@cache
def _find_decoder(kind: type[ServiceMessage]) -> msgspec.msgpack.Decoder[ServiceMessage]:
    return msgspec.msgpack.Decoder(kind)


def say_size(kind: type[ServiceMessage], size: int) -> str:
    """Return what to say of a message that is too large."""
    return f"a {kind.__name__} has {size} bytes; at most {kind.most_bytes} are allowed"


def pack_message(message: Message, buffers: list[Data]) -> Header | ServiceMessage:
    """Return the header of ``message``, and append the data of its tensors to ``buffers``."""
    match message:
        case Step(epoch, step, edits, rows, hidden, embeddings):
            packed = pack_tensors(hidden, buffers)
            return StepHeader(epoch, step, edits, rows, packed, pack_tensors(embeddings, buffers))
        case Result(epoch, step, stage, answers, free, seconds, tensors, sampling_s):
            packed = pack_tensors(tensors, buffers)
            return ResultHeader(epoch, step, stage, answers, free, seconds, packed, sampling_s)
        case Mask(epoch, step, row, bits, output):
            [entry] = pack_tensors((bits,), buffers)
            return MaskHeader(epoch, step, row, entry, output)
        case _:
            return message


def pack_tensors(tensors: tuple[Tensor, ...], buffers: list[Data]) -> tuple[TensorEntry, ...]:
    """Return entries for ``tensors``, and append their data to ``buffers``."""
    first = len(buffers)
    buffers.extend([view_bytes(tensor.data) for tensor in tensors])
    return tuple([TensorEntry(tensor.dtype, tensor.shape, first + i) for i, tensor in enumerate(tensors)])


def view_bytes(data: Data) -> memoryview:
    """Return a read-only view of the bytes of ``data``."""
    view = memoryview(data)
    if not view.nbytes:
        return memoryview(b"")  # a view with a zero in its shape cannot be cast
    return view.cast("B").toreadonly()


def unpack_header(header: Header, buffers: tuple[Data, ...]) -> CoreMessage:
    """Return the message of a header.

    Raises:
        BadFrame: if its entries do not match the buffers.
    """
    match header:
        case StepHeader(epoch, step, edits, rows, hidden, embeddings):
            tensors = unpack_entries((*hidden, *embeddings), buffers)
            count = len(hidden)
            return Step(epoch, step, edits, rows, tensors[:count], tensors[count:])
        case ResultHeader(epoch, step, stage, answers, free, seconds, entries, sampling_s):
            tensors = unpack_entries(entries, buffers)
            return Result(epoch, step, stage, answers, free, seconds, tensors, sampling_s)
        case MaskHeader(epoch, step, row, entry, output):
            [bits] = unpack_entries((entry,), buffers)
            return Mask(epoch, step, row, bits, output)
        case _:
            unpack_entries((), buffers)
            return header


def unpack_entries(entries: tuple[TensorEntry, ...], buffers: tuple[Data, ...]) -> tuple[Tensor, ...]:
    """Return the tensors of ``entries``, each a view of its buffer."""
    if sorted([entry.buffer for entry in entries]) != list(range(len(buffers))):
        raise BadFrame(f"its {len(entries)} tensors do not use each of its {len(buffers)} buffers once")
    if strange := [entry.dtype for entry in entries if entry.dtype not in ITEM_BYTES]:
        raise BadFrame(f"a tensor is {strange[0]}, which does not pass between stages")
    try:
        return tuple([Tensor(entry.dtype, entry.shape, view_bytes(buffers[entry.buffer])) for entry in entries])
    except ValueError as error:
        raise BadFrame(str(error)) from error
