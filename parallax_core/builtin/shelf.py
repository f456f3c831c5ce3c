"""Where a source keeps the models it downloads.

``FOLDER/org--name[@revision]/`` is a model, complete by construction: it is filled elsewhere and renamed in one go,
with `Record` in it. ``FOLDER/.partial/org--name[@revision]/COMMIT/`` is one being filled; ``FOLDER/.locks/`` keeps
two processes from filling the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec
from filelock import FileLock

from parallax_core.base.errors import UnknownName
from parallax_core.contracts.source import StoredModel

RECORD = ".complete.json"


class Record(msgspec.Struct, frozen=True):
    """What a complete model consists of."""

    name: str
    commit: str
    files: dict[str, int]
    """File name to size in bytes."""


class Shelf:
    """The models in one folder. Names are ``org/name`` or ``org/name@revision``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, name: str) -> Path | None:
        """Return the folder of a model that is complete here, else None."""
        path = self._folder / _slug(name)
        record = _read_record(path)
        return path if record is not None and _holds(path, record) else None

    def stored(self) -> list[StoredModel]:
        """Return the models that are complete here, sorted by name."""
        if not self._folder.is_dir():
            return []
        models = []
        for path in self._folder.iterdir():
            record = _read_record(path)
            if record is not None and _holds(path, record):
                models.append(StoredModel(name=record.name, path=path, size_bytes=sum(record.files.values())))
        return sorted(models, key=lambda model: model.name)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Wait until no other process changes this model, and keep others waiting meanwhile."""
        path = self._folder / ".locks" / f"{_slug(name)}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path):
            yield

    def draft(self, name: str, commit: str) -> Path:
        """Return the folder to fill for a model at a commit, with what an earlier attempt left there."""
        path = self._partial(name) / commit
        path.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self, name: str, draft: Path, files: Sequence[str]) -> Path:
        """Turn a filled draft, whose folder is named by its commit, into the model; return its folder."""
        sizes = {file: (draft / file).stat().st_size for file in files}
        record = Record(name=name, commit=draft.name, files=sizes)
        (draft / RECORD).write_bytes(msgspec.json.encode(record))
        path = self._folder / _slug(name)
        if path.is_dir():
            _delete(path)
        draft.rename(path)
        shutil.rmtree(self._partial(name))
        return path

    def remove(self, name: str) -> int:
        """Delete a model, complete or begun, and return the bytes freed.

        Raises:
            UnknownName: if nothing of it is here.
        """
        folders = [path for path in (self._folder / _slug(name), self._partial(name)) if path.is_dir()]
        if not folders:
            names = ", ".join(model.name for model in self.stored()) or "nothing"
            raise UnknownName(f"{name} is not stored on this machine", f"stored here: {names}")
        return sum(_delete(path) for path in folders)

    def _partial(self, name: str) -> Path:
        return self._folder / ".partial" / _slug(name)


def _slug(name: str) -> str:
    repo, at, revision = name.partition("@")
    return repo.replace("/", "--") + at + quote(revision, safe="")


def _read_record(path: Path) -> Record | None:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((path / RECORD).read_bytes(), type=Record)
    return None


def _holds(path: Path, record: Record) -> bool:
    with suppress(OSError):
        return all((path / name).stat().st_size == size for name, size in record.files.items())
    return False


def _delete(folder: Path) -> int:
    if folder.is_symlink():
        # Somebody moved the model elsewhere: what lies outside our folder is not ours to delete.
        folder.unlink()
        return 0
    freed = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    # First, so that a deletion that is interrupted leaves nothing that looks complete.
    (folder / RECORD).unlink(missing_ok=True)
    shutil.rmtree(folder)
    return freed
