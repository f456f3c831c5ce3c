"""Loads a dataset by its name: the one place that knows all kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from parallax_bench.conversations import read_all_turns, read_first_turns
from parallax_bench.dataset import Sizes, make_random
from parallax_bench.entries import list_lines, parse, read_text
from parallax_bench.request import BenchRequest
from parallax_bench.traces import read_trace
from parallax_core.api import ParallaxError

DEFAULT_LEN = 128
"""Tokens per answer by default, where no length was recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a run wants of a dataset."""

    num: int
    """The number of requests."""
    sizes: Sizes = field(default_factory=Sizes)
    """The lengths of what is made up."""
    output_len: int | None = None
    """Tokens per answer; None: as recorded, or `DEFAULT_LEN`."""
    length_scale: float = 1.0
    """A factor for the lengths of traces."""
    seed: int = 0


def read_requests(path: Path, output_len: int | None) -> Iterator[BenchRequest]:
    """Yield the requests of a file of JSON lines with ``prompt`` or ``messages``, and other fields of a request.

    Raises:
        ParallaxError: naming the malformed line.
    """
    for where, line in list_lines(read_text(path), path):
        body = parse(line, where)
        if not isinstance(body, dict) or ("prompt" in body) == ("messages" in body):
            raise ParallaxError(f"{where} needs one of 'prompt' and 'messages'", "give each line exactly one of them")
        route = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        yield BenchRequest(route=route, body={"max_tokens": output_len or DEFAULT_LEN, **body})


MADE = ("random", "shared-prefix")
"""The kinds that are made up."""
FILES: dict[str, Callable[[Path, Wanted], Iterator[BenchRequest]]] = {
    "file": lambda path, wanted: read_requests(path, wanted.output_len),
    "sharegpt": lambda path, wanted: read_first_turns(path, wanted.output_len),
    "conversations": lambda path, wanted: read_all_turns(path, wanted.output_len),
    "trace": lambda path, wanted: read_trace(path, wanted.output_len, wanted.length_scale, wanted.seed),
}
"""What reads a file of each kind; to add a kind, add its reader."""


def load_dataset(name: str, wanted: Wanted) -> list[BenchRequest]:
    """Return the requests of a dataset; a file that is no trace is repeated from its beginning if it has fewer.

    Args:
        name: a kind of `MADE`, or ``KIND:PATH`` with one of `FILES`.
        wanted: how many, and how long.

    Raises:
        ParallaxError: if there is no such dataset, it has no request, or it is malformed.
    """
    kind, _, path = name.partition(":")
    if name in MADE:
        return make_random(wanted.num, wanted.sizes, wanted.seed)
    if kind not in FILES or not path:
        known = ", ".join((*MADE, *(f"{each}:PATH" for each in FILES)))
        raise ParallaxError(f"there is no dataset {name!r}", f"there is {known}")
    found = list(islice(FILES[kind](Path(path), wanted), wanted.num))
    if not found:
        raise ParallaxError(f"there is no request in {path}", "see the README of parallax-bench for the forms of files")
    if found[0].at is not None:
        return found
    return [found[index % len(found)] for index in range(wanted.num)]
