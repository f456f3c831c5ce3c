"""Downloads a model into its folder: all of it, everything but the weights, or some of its tensors."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parallax_core.api import ParallaxError, Progress, silent
from parallax_core.api.source import (
    LENGTH_BYTES,
    MOST_HEADER_BYTES,
    ByteRanges,
    check_folder,
    find_locations,
    find_missing,
    read_index,
)
from parallax_source_hub.download import Download
from parallax_source_hub.model_cache import CachedModel, ModelCache
from parallax_source_hub.model_files import choose_files, choose_weights
from parallax_source_hub.partial_file import PartialFile, RemoteFile

HEADER_BYTES = 2**17
"""Bytes of a weight file fetched first: most headers are shorter, so that one request gets them."""
GAP_BYTES = 2**16
"""The widest gap between tensors, in bytes, that is fetched along with them to save a request."""
QUIET_BYTES = 10**8
"""Bytes up to which files are checked without progress reports, since it takes little time."""

IsWanted = Callable[[str], bool]
"""Returns whether the tensor of a name is wanted."""


@dataclass(frozen=True, slots=True)
class ModelDownload:
    """Fetches the missing parts of a model. The caller holds the model's lock."""

    record: CachedModel
    cache: ModelCache
    transfer: Download
    progress: Progress

    @property
    def folder(self) -> Path:
        """The folder of the model."""
        return self.cache.locate(self.record.name)

    def fetch_all(self) -> None:
        """Fetch the whole model."""
        self.fetch_without_weights()
        files = self._list_all()
        self._fetch({file: ByteRanges([(0, file.remote.size)]) for file in files}, f"download {self.record.name}")

    def fetch_without_weights(self) -> None:
        """Fetch everything but the weights."""
        files = [PartialFile(self.folder, each) for each in choose_files(self.record.name, self.record.files)]
        if not all(file.is_whole for file in files):
            wanted = {file: ByteRanges([(0, file.remote.size)]) for file in files}
            self._fetch(wanted, f"download {self.record.name} without weights")

    def fetch_tensors(self, is_wanted: IsWanted) -> None:
        """Fetch the wanted tensors, after the headers that locate them."""
        self.fetch_without_weights()
        weights = choose_weights(self.record.name, self.record.files, self.folder)
        files = [PartialFile(self.folder, each) for each in choose_shards(self.folder, weights, is_wanted)]
        for number, file in enumerate(files):
            self._fetch_header(file, number, len(files))
        wanted = {file: locate_tensors(file.path, is_wanted) for file in files}
        self._fetch(wanted, f"download layers of {self.record.name}")

    def _fetch_header(self, file: PartialFile, number: int, count: int) -> None:
        """Fetch the header of a weight file, one of ``count``, and give the file its name."""
        task = f"download headers of {self.record.name}"
        if not file.is_named:

            def fill(stop: int) -> None:
                wanted = ByteRanges([(0, min(stop, file.remote.size))])
                self.transfer.fill(file, wanted, lambda _: self.progress(task, number, count, "items"))

            fill(HEADER_BYTES)
            with file.path.open("rb") as content:
                length = int.from_bytes(content.read(LENGTH_BYTES), "little")
            fill(LENGTH_BYTES + min(length, MOST_HEADER_BYTES))  # at most this much if it is not a header
            find_locations(file.path)
            file.name()
        self.progress(task, number + 1, count, "items")

    def _fetch(self, wanted: Mapping[PartialFile, ByteRanges], task: str) -> None:
        """Fetch ranges of files, check files that become complete, and complete the model if possible."""
        check_space(self.folder, wanted)
        total, done = sum(ranges.total for ranges in wanted.values()), 0
        unchecked = [file for file, ranges in wanted.items() if _becomes_whole(file, ranges)]
        total_unchecked, checked = sum(file.remote.size for file in unchecked), 0
        tell = self.progress if total_unchecked > QUIET_BYTES else silent
        for file, ranges in wanted.items():
            if not file.is_whole:
                self.transfer.fill(file, ranges, _shift(self.progress, task, done, total))
            done += ranges.total
            self.progress(task, done, total)
            if file in unchecked:
                file.finish(_shift(tell, f"check {self.record.name}", checked, total_unchecked))
                checked += file.remote.size
        self._complete()

    def _complete(self) -> None:
        files = self._list_all()
        if all(file.is_whole for file in files):
            check_folder(self.folder)
            self.cache.complete(self.record.name, [file.remote for file in files])

    def _list_all(self) -> list[PartialFile]:
        name, listing = self.record.name, self.record.files
        chosen = [*choose_files(name, listing), *choose_weights(name, listing, self.folder)]
        return [PartialFile(self.folder, each) for each in chosen]


def has_files(folder: Path, record: CachedModel) -> bool:
    """Return whether everything but the weights is present; changes nothing and needs no lock."""
    return all(_is_named(folder, file) for file in choose_files(record.name, record.files))


def has_tensors(folder: Path, record: CachedModel, is_wanted: IsWanted) -> bool:
    """Return whether all wanted tensors are present; changes nothing and needs no lock."""
    if not has_files(folder, record):
        return False
    shards = choose_shards(folder, choose_weights(record.name, record.files, folder), is_wanted)
    return all(_is_named(folder, file) for file in shards) and not any(map(is_wanted, find_missing(folder)))


def choose_shards(folder: Path, weights: Sequence[RemoteFile], is_wanted: IsWanted) -> Sequence[RemoteFile]:
    """Return the files that hold wanted tensors by the index in ``folder``; all files if there is no index."""
    index = read_index(folder)
    names = {file for tensor, file in index.items() if is_wanted(tensor)}
    return [file for file in weights if file.name in names] if index else weights


def locate_tensors(path: Path, is_wanted: IsWanted) -> ByteRanges:
    """Return the ranges of a weight file's header and wanted tensors, with narrow gaps filled."""
    locations = find_locations(path)
    ranges = ByteRanges([(0, min((location.start for location in locations), default=path.stat().st_size))])
    for location in locations:
        if is_wanted(location.name):
            ranges.add(location.start, location.stop)
    return ranges.bridge(GAP_BYTES)


def check_space(folder: Path, wanted: Mapping[PartialFile, ByteRanges], copies: int = 1) -> None:
    """Refuse a download that does not fit on the disk, in a number of copies; bytes already present do not count.

    Raises:
        ParallaxError: naming the needed and the free space.
    """
    gaps = [gap for file, ranges in wanted.items() for gap in file.find_missing(ranges)]
    needed, free = copies * sum(stop - start for start, stop in gaps), shutil.disk_usage(folder).free
    if needed > free:
        message = f"the download needs {needed / 1e9:.1f} GB, but {folder} has only {free / 1e9:.1f} GB free"
        raise ParallaxError(message, "free some space, or set PARALLAX_HOME to a folder on another disk")


def _becomes_whole(file: PartialFile, wanted: ByteRanges) -> bool:
    """Return whether a file becomes complete once ``wanted`` is fetched."""
    return not file.is_whole and ByteRanges([*file.present, *wanted]).covers(0, file.remote.size)


def _is_named(folder: Path, file: RemoteFile) -> bool:
    path = folder / file.name
    return path.exists() and path.stat().st_size == file.size


def _shift(progress: Progress, task: str, before: int, total: int) -> Callable[[int], None]:
    return lambda done: progress(task, before + done, total)
