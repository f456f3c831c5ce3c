"""Finds the folder of an adapter that is named by its path, or fetches one that is named as on a hub."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from parallax_adapters.peft_config import CONFIG, MOST_CONFIG_BYTES
from parallax_adapters.peft_files import MOST_HEADER_BYTES, MOST_WEIGHT_BYTES, WEIGHTS
from parallax_core.api import ParallaxError, Unsupported, cache_folder

GROUP = "parallax.adapters"
"""The entry-point group of what fetches adapters, by the scheme of their names; see `AdapterFetcher`."""
NAME = re.compile(r"(?:(?P<scheme>[a-z]+):)?(?P<name>[\w.-]+/[\w.-]+)(?:@[\w./-]+)?")
"""Matches a name such as ``org/name``, ``org/name@revision`` or ``hf:org/name``."""
DEFAULT_SCHEME = "hf"
SETTING = "PARALLAX_ADAPTERS__HUB"
MOST: Mapping[str, int] = {CONFIG: MOST_CONFIG_BYTES, WEIGHTS: MOST_HEADER_BYTES + MOST_WEIGHT_BYTES}
"""The files of an adapter, and the most bytes of each."""


class AdapterFetcher(Protocol):
    """Fetches the files of an adapter; an entry point of a distribution in ``parallax.adapters``."""

    def __call__(self, name: str, files: Mapping[str, int], folder: Path, /) -> None:
        """Fetch files into a folder, which exists and is empty.

        Args:
            name: the name without its scheme, such as ``org/name@revision``.
            files: their names, and the most bytes that each may have; a longer one is not fetched.
            folder: where they go.

        Raises:
            ParallaxError: if one is missing or too long, or cannot be fetched.
        """


@contextmanager
def fetched(place: str, allowed: Sequence[str]) -> Iterator[Path]:
    """Yield the folder of an adapter; that of a name on a hub is fetched, and removed at the end.

    Args:
        place: its path, or a name such as ``org/name``, unless there is a folder of that path.
        allowed: patterns of the names that may be fetched, such as ``org/*``.

    Raises:
        ParallaxError: if it may not be fetched; the hint names the setting. Or if it cannot be.
    """
    name, path = NAME.fullmatch(place), Path(place)
    if name is None or (name["scheme"] is None and path.is_dir()):
        yield path.absolute()
        return
    if not any(fnmatchcase(name["name"], pattern) for pattern in allowed):
        message = f"there is no folder {place}, and adapters of that name are not fetched from a hub"
        raise Unsupported(message, f"an operator can allow it with {SETTING}={name['name'].partition('/')[0]}/*")
    fetch, bare = _find_fetcher(name["scheme"] or DEFAULT_SCHEME), place.removeprefix(f"{name['scheme']}:")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=cache_folder("adapters")) as folder:
        fetch(bare, MOST, Path(folder))
        yield Path(folder)


def _find_fetcher(scheme: str) -> AdapterFetcher:
    for point in entry_points(group=GROUP, name=scheme):
        fetcher: AdapterFetcher = point.load()
        return fetcher
    raise ParallaxError(f"nothing installed fetches adapters of {scheme!r}", "pip install parallax-source-hub")
