"""Fetches LoRA adapters of the hub: an entry point in ``parallax.adapters``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from parallax_core.api import ParallaxError
from parallax_core.api.source import ByteRanges
from parallax_source_hub.download import Download
from parallax_source_hub.partial_file import PartialFile
from parallax_source_hub.source import PAUSES_S, HubName


def fetch_adapter(name: str, files: Mapping[str, int], folder: Path) -> None:
    """Fetch files of a repository into a folder, each checked against its digest.

    Args:
        name: ``org/name`` or ``org/name@revision``.
        files: their names, and the most bytes that each may have.
        folder: where they go.

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
        part = PartialFile(folder, listed[file])
        transfer.fill(part, ByteRanges([(0, listed[file].size)]), _ignore)
        part.finish(_ignore)


def _ignore(_: int) -> None:
    """Report nothing."""
