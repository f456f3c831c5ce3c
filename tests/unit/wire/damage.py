"""Damages frames and reads them: ``python -m tests.unit.wire.damage --frames 1000000 --out FILE``.

Damaged frames are random bytes, and golden frames that are truncated, spliced, have flipped bits, or hold misplaced
values. Each must be refused with `BadFrame` or `WireVersionMismatch`, or be a message that survives encoding and
decoding unchanged; anything else ends the run with a traceback that shows the frame.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from math import inf, nan
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.record import describe_run, write_report
from parallax_cluster.wire import further, profile, relay, rendezvous, succession
from parallax_core.base.ids import Epoch, SeqId
from parallax_core.contracts.service_message import ServiceMessage
from parallax_core.contracts.stage import Draw, Row
from parallax_core.contracts.transport import Frame
from parallax_core.wire.codec import WIRE_VERSION, decode, encode, index_kinds
from parallax_core.wire.errors import BadFrame, WireVersionMismatch
from parallax_core.wire.messages import Message, Step
from parallax_engines import messages
from parallax_engines.messages import EngineMessage

GOLDEN = Path(__file__).with_name("golden_frames.json")
KINDS = index_kinds(
    kind
    for module in (further, profile, relay, rendezvous, succession, messages)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, ServiceMessage) and kind not in {ServiceMessage, EngineMessage}
)
"""The messages of our own services."""
MOST_RANDOM_BYTES = 4096
ODD_VALUES: tuple[Any, ...] = (
    *(0, 1, 7, -1, 2**31, 2**53 - 1, 2**53, 2**64 - 1, -(2**63), 0.5, inf, nan, True, None),
    *("", "float32", "x" * 300, b"", b"\xff", [], [0], [0, 0], [[]], [[0, 0]], [3, 1], [0, -1, 0], {}, {"a": 1}),
)
LIES = (b"\xdd\xff\xff\xff\xff", b"\xdd\x00\x10\x00\x00", b"\xdc\xff\xff", b"\xdb\x7f\xff\xff\xff", b"\x91" * 3000)
"""The beginnings of arrays and strings that are longer than any frame, and of a deeply nested array."""


@dataclass
class Outcome:
    """Counts of damaged frames by result, and the slowest frame."""

    frames: int = 0
    messages: int = 0
    """Frames that were valid messages."""
    bad_frames: int = 0
    version_mismatches: int = 0
    damage: dict[str, int] = field(default_factory=dict)
    """Frames by kind of damage."""
    worst_us: float = 0.0
    """The most CPU time one frame took, in microseconds, by the fastest of several readings."""
    worst_damage: str = ""
    """The kind of damage of that frame."""
    worst_bytes: int = 0
    """The size of that frame's header."""


def make_step(rows: int, start: int = 10**6, first: int = 2**32) -> Step:
    """Return a decode step with ``rows`` rows at position ``start``; sequence numbers count down from ``first``."""
    decodes = tuple(Row(SeqId(first - i), start, (128000 + i % 256,), (Draw(0),)) for i in range(rows))
    return Step(Epoch(1), 10**6, rows=decodes)


def decode_any(frame: Frame) -> Message:
    """Decode a frame with a message of core or of one of our own services."""
    return decode(frame, kinds=KINDS)


def read_corpus() -> list[Frame]:
    """Return the golden frames of this version, and a decode step."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))[str(WIRE_VERSION)].values()
    frames = [Frame(bytes.fromhex(each["header"]), tuple(map(bytes.fromhex, each["buffers"]))) for each in golden]
    return [*frames, encode(make_step(32))]


def randomize_bytes(rng: random.Random, _: list[Frame]) -> Frame:
    """Make random bytes, half of them with the right version."""
    version = rng.choice((b"", bytes([WIRE_VERSION])))
    return Frame(version + rng.randbytes(int(MOST_RANDOM_BYTES ** rng.random())), (rng.randbytes(rng.randrange(4)),))


def truncate_header(rng: random.Random, corpus: list[Frame]) -> Frame:
    """Truncate a header, or drop a buffer or its last byte."""
    frame = rng.choice(corpus)
    if frame.buffers and rng.random() < 1 / 4:
        return Frame(frame.header, rng.choice((frame.buffers[1:], (frame.buffers[0][:-1], *frame.buffers[1:]))))
    return Frame(frame.header[: rng.randrange(len(frame.header))], frame.buffers)


def flip_bits(rng: random.Random, corpus: list[Frame]) -> Frame:
    """Flip up to eight bits of a header."""
    frame = rng.choice(corpus)
    header = bytearray(frame.header)
    for _ in range(rng.randint(1, 8)):
        header[rng.randrange(len(header))] ^= 1 << rng.randrange(8)
    return Frame(bytes(header), frame.buffers)


def splice_frames(rng: random.Random, corpus: list[Frame]) -> Frame:
    """Splice the headers of two frames, with the buffers of either."""
    one, two = rng.choice(corpus), rng.choice(corpus)
    header = one.header[: rng.randrange(len(one.header))] + two.header[rng.randrange(len(two.header)) :]
    return Frame(header, rng.choice((one, two)).buffers)


def insert_lies(rng: random.Random, corpus: list[Frame]) -> Frame:
    """Replace some bytes by the beginning of a huge value."""
    frame = rng.choice(corpus)
    at = rng.randrange(1, len(frame.header))
    return Frame(frame.header[:at] + rng.choice(LIES) + frame.header[at + rng.randrange(9) :], frame.buffers)


def replace_value(rng: random.Random, corpus: list[Frame]) -> Frame:
    """Replace a value in a header by an odd one or by one from elsewhere, or remove or duplicate it."""
    frame = rng.choice(corpus)
    header = msgspec.msgpack.decode(frame.header[1:])
    place = rng.choice(list(walk_lists(header)))
    at = rng.randrange(len(place))
    values = [rng.choice(ODD_VALUES), rng.choice(place), rng.choice(list(walk_lists(header)))]
    place[at : at + 1] = rng.choice(([rng.choice(values)], [], [place[at], place[at]]))
    return Frame(frame.header[:1] + msgspec.msgpack.encode(snip_cycles(header)), frame.buffers)


def walk_lists(value: object) -> Iterator[list[Any]]:
    """Yield every non-empty list in ``value``."""
    if isinstance(value, list) and value:
        yield value
        for each in value:
            yield from walk_lists(each)


def snip_cycles(value: object, above: tuple[int, ...] = ()) -> object:
    """Return ``value`` with an empty list wherever a list contains itself."""
    if not isinstance(value, list):
        return value
    return [] if id(value) in above else [snip_cycles(each, (*above, id(value))) for each in value]


DAMAGES: tuple[Callable[[random.Random, list[Frame]], Frame], ...] = (
    randomize_bytes,
    truncate_header,
    flip_bits,
    splice_frames,
    insert_lies,
    replace_value,
)


def damage_frames(count: int, seed: int) -> Iterator[tuple[str, Frame]]:
    """Yield ``count`` damaged frames, each with its kind of damage."""
    rng, corpus = random.Random(seed), read_corpus()
    for number in range(count):
        damage = DAMAGES[number % len(DAMAGES)]
        yield damage.__name__.replace("_", " "), damage(rng, corpus)


def read_damaged(count: int, seed: int) -> Outcome:
    """Read ``count`` damaged frames.

    Raises:
        AssertionError: if a frame raises an unexpected error or changes when encoded again; it shows the frame.
    """
    outcome = Outcome()
    for damage, frame in damage_frames(count, seed):
        outcome.frames += 1
        outcome.damage[damage] = outcome.damage.get(damage, 0) + 1
        try:
            kind, took_us = time_frame(frame)
        except Exception as error:
            raise AssertionError(f"{damage}: {frame}") from error
        setattr(outcome, kind, getattr(outcome, kind) + 1)
        if took_us > outcome.worst_us:
            took_us = min(
                took_us, *[time_frame(frame)[1] for _ in range(5)]
            )  # a single slow reading may be due to other load
        if took_us > outcome.worst_us:
            outcome.worst_us, outcome.worst_damage, outcome.worst_bytes = took_us, damage, len(frame.header)
    return outcome


def time_frame(frame: Frame) -> tuple[str, float]:
    """Return the result of `classify_frame`, and the microseconds of CPU time it took."""
    began = time.thread_time()
    kind = classify_frame(frame)
    return kind, 1e6 * (time.thread_time() - began)


def classify_frame(frame: Frame) -> str:
    """Decode a frame, and return the name of the count of `Outcome` it belongs to."""
    try:
        message = decode_any(frame)
    except BadFrame:
        return "bad_frames"
    except WireVersionMismatch:
        return "version_mismatches"
    again = encode(message)
    assert encode(decode_any(again)) == again  # the bytes and not the messages, which may hold NaN
    return "messages"


def measure_peak() -> float:
    """Return the peak memory of this process, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def run_fuzz(count: int, seed: int) -> dict[str, Any]:
    """Read damaged frames, and return the counts, the rate and the memory."""
    read_damaged(1000, seed + 1)  # imports and caches of the first use do not count
    before, began = measure_peak(), time.perf_counter()
    outcome = read_damaged(count, seed)
    seconds = time.perf_counter() - began
    return asdict(outcome) | {
        "seed": seed,
        "seconds": round(seconds, 1),
        "frames_per_s": round(count / seconds),
        "worst_us": round(outcome.worst_us, 1),
        "peak_memory_mib": round(measure_peak(), 1),
        "memory_grown_mib": round(measure_peak() - before, 1),
    }


def main() -> None:
    """Read damaged frames, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    given = parser.parse_args()
    command = ["tests.unit.wire.damage", "--frames", str(given.frames)]
    found = run_fuzz(given.frames, given.seed) | {"wire_version": WIRE_VERSION} | describe_run(command, ["msgspec"])
    print(json.dumps(found, indent=2))
    write_report(given.out, found)


if __name__ == "__main__":
    main()
