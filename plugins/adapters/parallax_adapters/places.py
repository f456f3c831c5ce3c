"""Finds the folder of an adapter that is named by its path, or fetches one that is named as on a hub."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from parallax_adapters.peft_config import CONFIG, MOST_CONFIG_BYTES, parse_config
from parallax_adapters.peft_files import (
    LENGTH_BYTES,
    MOST_HEADER_BYTES,
    MOST_WEIGHT_BYTES,
    WEIGHTS,
    check_header,
    check_rank,
    measure_header,
)
from parallax_core.api import ParallaxError, Unsupported, cache_folder

GROUP = "parallax.adapters"
"""The entry-point group of what fetches adapters, by the scheme of their names; see `AdapterFetcher`."""
NAME = re.compile(r"(?:(?P<scheme>[a-z]+):)?(?P<name>[\w.-]+/[\w.-]+)(?:@[\w./-]+)?")
"""Matches a name such as ``org/name``, ``org/name@revision`` or ``hf:org/name``."""
DEFAULT_SCHEME = "hf"
SETTING = "PARALLAX_ADAPTERS__HUB"
MOST: Mapping[str, int] = {CONFIG: MOST_CONFIG_BYTES, WEIGHTS: MOST_HEADER_BYTES + MOST_WEIGHT_BYTES}
"""The files of an adapter, and the most bytes of each."""


Look = Callable[[str, bytes], int]
"""Given the name of a file and its first bytes, none of them at first, returns how many it has to see: no more than it
was given once it is content. Raises ParallaxError if the file is not wanted."""


class FirstLook:
    """Refuses an adapter by its settings, and by the header of its matrices, before these are fetched; see `Look`.

    Args:
        max_rank: the largest rank that is allowed; 0: any.
    """

    def __init__(self, max_rank: int) -> None:
        self._max_rank = max_rank

    def __call__(self, file: str, begin: bytes) -> int:
        """Look at the first bytes of a file; raises Unsupported if the adapter cannot be used."""
        if file == CONFIG:
            if begin:
                check_rank(parse_config(begin).largest_rank, self._max_rank)
            return len(begin) or MOST[CONFIG]
        needed = measure_header(begin)
        if len(begin) >= needed > LENGTH_BYTES:
            check_header(begin[LENGTH_BYTES:needed], self._max_rank)
        return needed


class AdapterFetcher(Protocol):
    """Fetches the files of an adapter; an entry point of a distribution in ``parallax.adapters``."""

    def __call__(self, name: str, files: Mapping[str, int], folder: Path, look: Look, /) -> None:
        """Fetch files into a folder, which exists and is empty, one after the other.

        Args:
            name: the name without its scheme, such as ``org/name@revision``.
            files: their names, and the most bytes that each may have; a longer one is not fetched.
            folder: where they go.
            look: is given the first bytes of each file, before the others are fetched.

        Raises:
            ParallaxError: if one is missing or too long, or cannot be fetched; or as ``look`` does.
        """


@contextmanager
def fetched(place: str, allowed: Sequence[str], max_rank: int = 0) -> Iterator[Path]:
    """Yield the folder of an adapter; that of a name on a hub is fetched, and removed at the end.

    Args:
        place: its path, or a name such as ``org/name``, unless there is a folder of that path.
        allowed: patterns of the names that may be fetched, such as ``org/*``.
        max_rank: the largest rank that is allowed, for one that is fetched; 0: any.

    Raises:
        ParallaxError: if it may not be fetched; the hint names the setting. Or if it cannot be.
    """
    name, path = NAME.fullmatch(place), Path(place)
    if name is None or (name["scheme"] is None and path.is_dir()):
        yield Path(os.path.expanduser(path)).absolute()  # noqa: PTH111 -- that of Path raises for an unknown user
        return
    if not any(fnmatchcase(name["name"], pattern) for pattern in allowed):
        message = f"there is no folder {place}, and adapters of that name are not fetched from a hub"
        raise Unsupported(message, f"an operator can allow it with {SETTING}={name['name'].partition('/')[0]}/*")
    fetch, bare = _find_fetcher(name["scheme"] or DEFAULT_SCHEME), place.removeprefix(f"{name['scheme']}:")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=cache_folder("adapters")) as folder:
        fetch(bare, MOST, Path(folder), FirstLook(max_rank))
        yield Path(folder)


def _find_fetcher(scheme: str) -> AdapterFetcher:
    for point in entry_points(group=GROUP, name=scheme):
        fetcher: AdapterFetcher = point.load()
        return fetcher
    raise ParallaxError(f"nothing installed fetches adapters of {scheme!r}", "pip install parallax-source-hub")
