"""Fetches LoRA adapters of the hub: an entry point in ``parallax.adapters``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from parallax_core.api import ParallaxError
from parallax_core.api.source import ByteRanges
from parallax_source_hub.download import Download
from parallax_source_hub.partial_file import PartialFile
from parallax_source_hub.source import PAUSES_S, HubName


def fetch_adapter(
    name: str, files: Mapping[str, int], folder: Path, look: Callable[[str, bytes], int] = lambda _, begin: len(begin)
) -> None:
    """Fetch files of a repository into a folder, each checked against its digest.

    Args:
        name: ``org/name`` or ``org/name@revision``.
        files: their names, and the most bytes that each may have.
        folder: where they go.
        look: is given the first bytes of each file, none at first, and returns how many it has to see before the
            others are fetched; it raises ParallaxError to refuse the file.

    Raises:
        UnknownName: if there is no such repository or revision.
        ParallaxError: if a file is missing or too long, or the hub cannot be reached or refuses.
    """
    from parallax_source_hub.client import HubClient

    wanted = HubName.parse(name)
    remote = HubClient.connect(wanted.repo, wanted.revision)
    listed = {file.name: file for file in remote.files}
    for file, most in files.items():
        if file not in listed:
            raise ParallaxError(f"{name} has no {file}", "name a repository with a LoRA adapter as PEFT saves it")
        if (size := listed[file].size) > most:
            raise ParallaxError(f"{file} of {name} has {size} bytes; at most {most} are allowed")
    transfer = Download(remote.open, PAUSES_S)
    for file in files:
        part, size, begin = PartialFile(folder, listed[file]), listed[file].size, b""
        while (stop := min(look(file, begin), size)) > len(begin):
            transfer.fill(part, ByteRanges([(0, stop)]), _ignore)
            begin = read_begin(part.path, stop)
        transfer.fill(part, ByteRanges([(0, size)]), _ignore)
        part.finish(_ignore)


def read_begin(path: Path, size: int) -> bytes:
    """Return the first bytes of a file."""
    with path.open("rb") as file:
        return file.read(size)


def _ignore(_: int) -> None:
    """Report nothing."""
