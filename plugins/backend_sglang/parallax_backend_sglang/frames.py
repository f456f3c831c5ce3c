"""The framed messages between a worker process and the child process that runs SGLang.

A frame is its length, 4 bytes in network order, and a message in msgpack. Both ends are the same version of this
package, on one machine, connected by a socket pair that no other process can open.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import msgspec

from parallax_core.api import EngineInfo, Reason, TokenLogprob

LENGTH = struct.Struct("!I")


class LoadEngine(msgspec.Struct, frozen=True, tag=0, array_like=True):
    """Load the model; answered by `Phase` messages, and `Loaded` or `Failed`."""

    architecture: str
    """The architecture in the model's config.json."""
    arguments: dict[str, Any]
    """The arguments of `sglang.Engine`."""


class Generate(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Generate one answer; its `Chunk` messages follow."""

    number: int
    prompt: tuple[int, ...]
    sampling: dict[str, Any]
    """The ``sampling_params`` of `sglang.Engine.async_generate`."""
    options: dict[str, Any]
    """Its other arguments."""
    stop_ids: tuple[int, ...] = ()


class Stop(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Abort answers; unknown numbers are ignored."""

    numbers: tuple[int, ...]


class Phase(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """One of `PHASES` of the start is done."""

    done: int


class Loaded(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """The engine can generate."""

    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """The model cannot be loaded, or the engine can no longer serve."""

    message: str
    hint: str = ""


class Chunk(msgspec.Struct, frozen=True, tag=6, array_like=True, kw_only=True):
    """The next tokens of an answer."""

    number: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0
    ended: Reason | None = None
    message: str = ""
    """If ``ended`` is ``error``: what happened."""


class Chunks(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """The chunks of one turn of the child's event loop."""

    chunks: tuple[Chunk, ...]


class Load(msgspec.Struct, frozen=True, tag=8, array_like=True):
    """The engine's load, sent whenever it has changed."""

    running: int
    waiting: int
    used: int
    """Slots of the KV cache in use, those of stored prefixes included."""
    total: int


Frame = LoadEngine | Generate | Stop | Phase | Loaded | Failed | Chunks | Load
PHASES = 2
"""The phases of the start: SGLang is imported, and the model is loaded."""

ENCODER = msgspec.msgpack.Encoder()
DECODER: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def pack(message: Frame) -> bytes:
    """Return the frame of a message."""
    body = ENCODER.encode(message)
    return LENGTH.pack(len(body)) + body


def receive(link: socket.socket) -> Frame | None:
    """Wait for a message; return None when the other end is closed."""
    body = receive_body(link)
    return DECODER.decode(body) if body else None


def receive_body(link: socket.socket) -> bytes:
    """Wait for the bytes of a message; return none when the other end is closed."""
    head = _receive_bytes(link, LENGTH.size)
    return _receive_bytes(link, LENGTH.unpack(head)[0]) if head else b""


async def read(stream: asyncio.StreamReader) -> Frame | None:
    """Wait for a message; return None when the other end is closed."""
    try:
        [length] = LENGTH.unpack(await stream.readexactly(LENGTH.size))
        return DECODER.decode(await stream.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _receive_bytes(link: socket.socket, count: int) -> bytes:
    """Return ``count`` bytes; fewer, or none, if the other end is closed."""
    found = bytearray()
    while len(found) < count:
        try:
            part = link.recv(count - len(found))
        except ConnectionError:
            return b""
        if not part:
            return b""
        found += part
    return bytes(found)
