"""The folder in which a source stores downloaded models.

``FOLDER/org--name[@revision][+QUANTISATION]/`` is a complete or partial model, and does not move while it grows. It has
a record of the model's files: ``.complete.json`` if all of them are present and checked, otherwise ``.partial.json``.
The locks in ``FOLDER/.locks/`` keep two processes from fetching into one model at the same time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec
from filelock import FileLock, Timeout

from parallax_core.api import ParallaxError, Progress, StoredModel, UnknownName
from parallax_core.api.source import SINGLE, read_present
from parallax_source_hub.model_files import choose_files, choose_weights
from parallax_source_hub.partial_file import RemoteFile

COMPLETE, PARTIAL = ".complete.json", ".partial.json"
WEIGHTS = ("*.safetensors", "*.safetensors.part", ".gguf/**/*.gguf", ".gguf/**/*.gguf.part")
"""The files with weights, or with what they are made of, in the folder of a model."""
SIGN_S = 1.0
"""Seconds between progress reports while waiting for another process."""


class CachedModel(msgspec.Struct, frozen=True):
    """The record of a model's files."""

    name: str
    commit: str
    """The commit of its repository; all files are from it."""
    files: tuple[RemoteFile, ...]
    """The files of a complete model; of a partial one, all files it may need, as listed at this commit."""
    sources: tuple[RemoteFile, ...] = ()
    """The GGUF files that the model is made of; empty: its files are those of the hub."""


class ModelCache:
    """The models in one folder. Names are ``org/name``, with ``@revision`` and ``:QUANTISATION`` if given."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def locate(self, name: str) -> Path:
        """Return the folder of a model, whether or not it exists."""
        return self._folder / _slug(name)

    def find(self, name: str) -> Path | None:
        """Return the folder of a model if it is complete on this machine, else None."""
        path = self.locate(name)
        record = _read_record(path / COMPLETE)
        return path if record is not None and _holds(path, record) else None

    def find_partial(self, name: str) -> StoredModel | None:
        """Return a model if only a part of it is on this machine, else None."""
        record = self.read_begun(name)
        return _describe_partial(self.locate(name), record) if record else None

    def read_begun(self, name: str) -> CachedModel | None:
        """Return the record of a partial model, else None."""
        return None if self.find(name) else _read_record(self.locate(name) / PARTIAL)

    def list_weights(self, name: str) -> dict[str, str]:
        """Return the hub's digests of the weight files of a complete or partial model, by file name."""
        path = self.locate(name)
        record = _read_record(path / COMPLETE) or _read_record(path / PARTIAL)
        files = (record.sources or record.files) if record else ()
        listed = {file.name: file.sha256 or file.blob for file in files}
        return {name: digest for name, digest in listed.items() if digest and name.endswith((".safetensors", ".gguf"))}

    def stored(self) -> list[StoredModel]:
        """Return the complete models, sorted by name."""
        models = []
        for path, record in self._read_records(COMPLETE):
            if _holds(path, record):
                size = sum(file.size for file in record.files)
                models.append(StoredModel(name=record.name, path=path, size_bytes=size))
        return models

    def stored_partial(self) -> list[StoredModel]:
        """Return the partial models, sorted by name."""
        found = [(path, record) for path, record in self._read_records(PARTIAL) if not self.find(record.name)]
        return [_describe_partial(path, record) for path, record in found]

    @contextmanager
    def lock(self, name: str, progress: Progress) -> Iterator[None]:
        """Hold the lock of a model; report progress while another process holds it."""
        path = self._folder / ".locks" / f"{_slug(name)}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock, task = FileLock(path), f"wait for another download of {name}"
        has_waited = False
        while True:
            with suppress(Timeout):
                lock.acquire(timeout=SIGN_S)
                break
            has_waited = True
            progress(task, 0, 1, "items")
        try:
            if has_waited:
                progress(task, 1, 1, "items")
            yield
        finally:
            lock.release()

    def has_weights(self, name: str) -> bool:
        """Return whether any byte of a model's weights is present."""
        path = self.locate(name)
        return any(map(_measure, (found for pattern in WEIGHTS for found in path.glob(pattern))))

    def begin(
        self, name: str, commit: str, files: Sequence[RemoteFile], sources: Sequence[RemoteFile] = ()
    ) -> CachedModel:
        """Create the folder of a model, after deleting files of another commit; return its record."""
        path, record = self.locate(name), CachedModel(name, commit, tuple(files), tuple(sources))
        before = self.read_begun(name) or _read_record(path / COMPLETE)
        if path.is_dir() and (before is None or before.commit != commit):
            _delete(path)
        path.mkdir(parents=True, exist_ok=True)
        _write_record(path / PARTIAL, record)
        (path / COMPLETE).unlink(missing_ok=True)  # a file of it must be missing
        return record

    def complete(self, name: str, files: Sequence[RemoteFile]) -> None:
        """Mark a model whose ``files`` are all present and checked as complete."""
        path, begun = self.locate(name), self.read_begun(name)
        assert begun is not None, "it was begun"
        _write_record(path / COMPLETE, CachedModel(name, begun.commit, tuple(files), begun.sources))
        (path / PARTIAL).unlink()

    def remove(self, name: str) -> int:
        """Delete a complete or partial model, and return the bytes freed.

        Raises:
            UnknownName: if nothing of it is on this machine.
        """
        path = self.locate(name)
        if not path.is_dir():
            names = ", ".join(model.name for model in (*self.stored(), *self.stored_partial())) or "nothing"
            raise UnknownName(f"{name} is not stored on this machine", f"stored here: {names}")
        return _delete(path)

    def _read_records(self, kind: str) -> list[tuple[Path, CachedModel]]:
        """Return the records of a kind with their folders, sorted by model name."""
        paths = [path.parent for path in self._folder.glob(f"*/{kind}")]
        found = [(path, record) for path in paths if (record := _read_record(path / kind))]
        return sorted(found, key=lambda pair: pair[1].name)


def _slug(name: str) -> str:
    name, colon, kind = name.partition(":")
    repo, at, revision = name.partition("@")
    return repo.replace("/", "--") + at + quote(revision, safe="") + colon.replace(":", "+") + kind


def _read_record(path: Path) -> CachedModel | None:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=CachedModel)
    return None


def _write_record(path: Path, record: CachedModel) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(msgspec.json.encode(record))
    draft.replace(path)


def _holds(path: Path, record: CachedModel) -> bool:
    with suppress(OSError):
        return all((path / file.name).stat().st_size == file.size for file in record.files)
    return False


def _describe_partial(path: Path, record: CachedModel) -> StoredModel:
    if record.sources:
        return _describe_partial_gguf(path, record)
    files: Sequence[RemoteFile] = record.files
    with suppress(ParallaxError):  # before the index is present, which lists the needed files
        files = [*choose_files(record.name, files), *choose_weights(record.name, files, path)]
    here = sum(_measure(path / file.name) + _measure(path / f"{file.name}.part") for file in files)
    total = sum(file.size for file in files)
    return StoredModel(name=record.name, path=path, size_bytes=here, total_bytes=total)


def _describe_partial_gguf(path: Path, record: CachedModel) -> StoredModel:
    """Describe a model by the tensors that are made; before the first one, by the bytes fetched."""
    made = path / SINGLE
    fetched = (_measure(found) for pattern in WEIGHTS[2:] for found in path.glob(pattern))
    here, total = (_measure(made), made.stat().st_size) if made.exists() else (sum(fetched), 0)
    total = total or sum(file.size for file in record.sources)
    return StoredModel(name=record.name, path=path, size_bytes=here, total_bytes=total)


def _delete(path: Path) -> int:
    """Delete the folder of a model and return the bytes freed."""
    if path.is_symlink():
        # The user moved the model elsewhere: never delete files outside the cache folder.
        path.unlink()
        return 0
    freed = sum(map(_measure, path.rglob("*")))
    # First, so that an interrupted deletion leaves nothing that looks complete.
    (path / COMPLETE).unlink(missing_ok=True)
    shutil.rmtree(path)
    return freed


def _measure(path: Path) -> int:
    """Return the bytes of a file without its holes; 0 if it does not exist."""
    if not path.is_file():
        return 0
    present = read_present(path.with_suffix("") if path.suffix == ".part" else path)
    return path.lstat().st_size if present is None else present.total
