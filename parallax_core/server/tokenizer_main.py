"""The main module of a process that reads bodies; see `parallax_core.server.tokenizer_process`.

It reads jobs from its standard input one after another, writes the results to its standard output, and ends when the
input ends.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from parallax_core.base.errors import ParallaxError
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import LENGTH_BYTES, ReaderReady, ReaderSetup, ReadJob, RefusedBody, to_frame
from parallax_core.server.body_reader import BodyReader, load_bodies
from parallax_core.server.memory_limit import limit_memory

MOST_MEMORY = 4 * 2**30
"""Bytes of memory for the chat template and the tokenizer, which are untrusted."""


def main() -> None:
    """Read bodies until the standard input ends."""
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keep other output out of the results
    if not (first := _receive(asked)):
        return  # the server ended before it could say anything
    try:
        reader, takes_grammars = _prepare(msgspec.msgpack.decode(first, type=ReaderSetup))
    except ParallaxError as error:
        _send(answers, ReaderReady(RefusedBody.of(error)))
        return
    _send(answers, ReaderReady(takes_grammars=takes_grammars))
    decoder = msgspec.msgpack.Decoder(ReadJob)
    while data := _receive(asked):
        job = decoder.decode(data)
        ask = msgspec.structs.replace(job.ask, body=asked.read(job.size))
        _limit_time(job.limit_s)
        answer = reader.answer(ask)
        _limit_time(0)
        _send(answers, answer)


def _prepare(setup: ReaderSetup) -> tuple[BodyReader, bool]:
    """Return the reader of bodies, ready for its first one, and whether it takes grammars."""
    bodies = load_bodies(setup.bodies)
    text = ModelTokenizer(Path(setup.folder), setup.generation)
    _limit_time(setup.limit_s)
    limit_memory(MOST_MEMORY)
    text.compile_template()
    takes_grammars = not setup.checks_grammars or text.grammars.can_prepare()
    _limit_time(0)
    return BodyReader(text, setup.model_id, bodies, setup.parser), takes_grammars


def _limit_time(seconds: float) -> None:
    """End this process after ``seconds``, in case its parent is gone and cannot kill it; 0: never."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _receive(source: BinaryIO) -> bytes:
    """Return the next frame without its length; empty at the end of the input."""
    return source.read(int.from_bytes(source.read(LENGTH_BYTES), "little"))


def _send(target: BinaryIO, message: msgspec.Struct) -> None:
    target.write(to_frame(message))
    target.flush()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the server has ended, and reads nothing more
        os._exit(0)
