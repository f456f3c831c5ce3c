"""The source ``gguf``: GGUF files on this machine, by their paths."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from parallax_core.api import ModelFolder, ParallaxError, Progress, SourceContext, StoredModel, UnknownName, silent
from parallax_source_pypi.manifest import CONVERTER, FILE, Manifest, read_manifest, write_manifest
from parallax_source_pypi.store import explain_disk, hold_project, replace_folder, retire_folder

SCHEME = "gguf:"
HINT = "write the path of a GGUF file, such as gguf:models/model.gguf"
DIGITS = 12


class GgufSource:
    """Converts each GGUF file to the standard layout once, and keeps its weights packed."""

    def __init__(self, context: SourceContext) -> None:
        self._root = context.folder

    def find(self, name: str) -> ModelFolder | None:
        """Return the folder made from the file at ``name``, unless the file has changed; a deleted file is fine.

        Raises:
            Unsupported: if the file's model cannot be converted.
            ParallaxError: if the file is damaged.
        """
        path = read_path(name)
        with explain_disk(self._root):
            if self._is_made(path):
                return describe_model(path, place_model(self._root, path))
            if path.is_file():
                check_file(path)
        return None

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        """Return the model folder of the file at ``name``, converting it if needed.

        Raises:
            UnknownName: if the file does not exist.
            Unsupported: if its model cannot be converted.
            ParallaxError: if it is damaged, or the disk is full.
        """
        path = read_path(name)
        folder = place_model(self._root, path)
        with explain_disk(self._root):
            if not self._is_made(path):
                with hold_project(self._root, folder.name, progress) as work:
                    if not self._is_made(path):  # the process that held the lock before may have made it
                        make_model(path, folder, work, progress)
        return describe_model(path, folder)

    def stored(self) -> Sequence[StoredModel]:
        """Return the converted models, sorted by the paths of their files."""
        with explain_disk(self._root):
            found = [(manifest.source.removeprefix(SCHEME), folder) for folder, manifest in self._list_made()]
            return [
                StoredModel(name=name, path=folder, size_bytes=count_bytes(folder)) for name, folder in sorted(found)
            ]

    def remove(self, name: str) -> int:
        """Delete the model folder of the file at ``name``, not the file, and return the bytes freed.

        Raises:
            UnknownName: if there is no model folder of that file.
        """
        folder = place_model(self._root, read_path(name))
        if read_manifest(folder) is None:
            raise UnknownName(f"no model of {name!r} is stored", "`parallax models list` shows the stored models")
        with explain_disk(self._root), hold_project(self._root, folder.name, silent) as work:
            size = count_bytes(folder)
            retire_folder(folder, work)
            return size

    def _is_made(self, path: Path) -> bool:
        manifest = read_manifest(place_model(self._root, path))
        if manifest is None or manifest.converter < CONVERTER:
            return False
        return not path.exists() or manifest.member == describe_state(path)

    def _list_made(self) -> Iterator[tuple[Path, Manifest]]:
        for folder in self._root.iterdir() if self._root.is_dir() else ():
            manifest = None if folder.name.startswith(".") else read_manifest(folder)
            if manifest:
                yield folder, manifest


def read_path(name: str) -> Path:
    """Return the path that a name gives; it may be relative or begin with ``~``.

    Raises:
        UnknownName: if it is not the path of a GGUF file.
    """
    try:
        path = Path(name).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise UnknownName(f"{name!r} is not a usable path: {error}", HINT) from error
    if path.suffix.lower() != ".gguf":
        raise UnknownName(f"{name!r} does not end with .gguf", HINT)
    return path


def place_model(root: Path, path: Path) -> Path:
    """Return the model folder of a file: its name is the file's, with a digest of the file's path."""
    stem = re.sub(r"[^\w.-]+", "-", path.stem, flags=re.ASCII).strip(".-") or "model"
    return root / f"{stem}-{hashlib.sha256(str(path).encode()).hexdigest()[:DIGITS]}"


def check_file(path: Path) -> None:
    """Raise the error with which a file cannot be converted, as far as its header says so."""
    from parallax_source_pypi.convert import check_gguf  # numpy and gguf are slow to import

    check_gguf(path)


def make_model(path: Path, folder: Path, work: Path, progress: Progress) -> None:
    """Make the folder of a file.

    Raises:
        UnknownName: if the file does not exist.
        ParallaxError: if the file changes while it is read.
    """
    # Imported here, since numpy and gguf are slow to import, and most calls find the model made.
    from parallax_source_pypi.convert import ConversionOptions, convert_gguf

    if not path.is_file():
        raise UnknownName(f"there is no file {path}", HINT)
    state, model = describe_state(path), work / "model"
    model.mkdir()
    convert_gguf(path, model, progress, f"convert {path.name}", ConversionOptions(keeps_blocks=True))
    if describe_state(path) != state:
        raise ParallaxError(f"{path} was changed while it was read", "try again when it is complete")
    write_manifest(model, f"{SCHEME}{path}", "", state)
    replace_folder(model, folder, work)


def describe_state(path: Path) -> str:
    """Return values that change whenever a file of the model is written."""
    from parallax_formats.gguf.file import list_files  # numpy and gguf are slow to import

    found = [each.stat() for each in ([path] if "-of-" not in path.name else list_files(path))]
    return f"{sum(each.st_size for each in found)} bytes of {max(each.st_mtime_ns for each in found)}"


def describe_model(path: Path, folder: Path) -> ModelFolder:
    """Return the model in a folder of this source."""
    return ModelFolder(path=folder, ref=f"{SCHEME}{path}")


def count_bytes(folder: Path) -> int:
    """Return the size of a model's files."""
    manifest = read_manifest(folder)
    return sum(manifest.files.values()) + (folder / FILE).stat().st_size if manifest else 0
