"""Finds models that huggingface_hub, llama.cpp and LM Studio have, without changing anything."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from parallax_core.api import ParallaxError, StoredModel
from parallax_core.api.source import INDEX, SINGLE, check_folder
from parallax_source_hub.gguf_files import is_gguf, list_kinds
from parallax_source_hub.partial_file import RemoteFile

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_OF_LLAMA = re.compile(r"([^_]+)_(.+-GGUF)_.+\.gguf", re.IGNORECASE)
"""The name of a file in the cache of llama.cpp, whose repository is told if it ends as most do."""
LM_STUDIO = ("~/.lmstudio/models", "~/.cache/lm-studio/models")
MOST_FILES = 10_000
"""The most files of a folder that are looked at."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A GGUF file of another program."""

    path: Path
    remote: RemoteFile
    """The file as the hub lists it; its digests are empty if they are not known."""


def find_folder(repo: str, revision: str) -> Path | None:
    """Return a folder with a complete model in the standard layout."""
    return next((folder for folder in _list_folders(repo, revision) if find_whole(folder)), None)


def find_whole(folder: Path) -> Path | None:
    """Return a folder if it has a complete model in the standard layout."""
    with suppress(ParallaxError, OSError):
        if (folder / SINGLE).is_file() or (folder / INDEX).is_file():
            check_folder(folder)
            return folder
    return None


def list_digests(folder: Path) -> dict[str, str]:
    """Return the hub's digests of the weight files in a folder of its cache, by name; empty for another folder."""
    found = {path.name: path.resolve().name for path in folder.glob("*.safetensors") if path.is_symlink()}
    return {name: digest for name, digest in found.items() if _DIGEST.fullmatch(digest)}


def find_gguf(repo: str, revision: str, kind: str) -> list[LocalFile]:
    """Return the GGUF files of a repository in a quantisation, in their order; empty if not all are here."""
    return next((files for name, files in list_gguf(repo, revision) if name.lower() == kind.lower()), [])


def list_gguf(repo: str, revision: str) -> Iterator[tuple[str, list[LocalFile]]]:
    """Yield the quantisations of a repository whose GGUF files are all here, with the files in their order."""
    places = [_list_files(folder) for folder in _list_folders(repo, revision)]
    if revision == "main":
        places.append(_list_llama(repo))
    for files in places:
        for kind, chosen in list_kinds([file.remote for file in files.values()]).items():
            if _are_all(chosen):
                yield kind, [files[file.name] for file in chosen]


def list_models() -> list[StoredModel]:
    """Return the models of other programs that the source ``hf`` uses where they lie, sorted by name."""
    found: dict[str, StoredModel] = {}
    for repo, revision in dict.fromkeys(_list_repositories()):
        place = repo if revision == "main" else f"{repo}@{revision}"
        if folder := find_folder(repo, revision):
            size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
            found.setdefault(place, StoredModel(name=place, path=folder, size_bytes=size))
        for kind, files in list_gguf(repo, revision):
            size, name = sum(file.remote.size for file in files), f"{place}:{kind}"
            found.setdefault(name, StoredModel(name=name, path=files[0].path, size_bytes=size))
    return [found[name] for name in sorted(found)]


def _list_repositories() -> Iterator[tuple[str, str]]:
    """Yield the repositories of which something is here, with a branch."""
    with suppress(OSError):
        for refs in _locate_cache().glob("models--*/refs"):
            repo = refs.parent.name.removeprefix("models--").replace("--", "/")
            if repo.count("/") <= 1:
                yield from ((repo, path.name) for path in refs.iterdir() if path.is_file())
    for root in LM_STUDIO:
        places = Path(root).expanduser().glob("*/*")
        yield from ((f"{path.parent.name}/{path.name}", "main") for path in places if path.is_dir())
    for path in _locate_llama().glob("*.gguf"):
        if named := _OF_LLAMA.fullmatch(path.name):
            yield f"{named[1]}/{named[2]}", "main"


def _are_all(files: Sequence[RemoteFile]) -> bool:
    """Return whether the files of a model are as many as their names say."""
    told = re.search(r"-of-(\d{5})\.gguf$", files[0].name)
    return len(files) == (int(told[1]) if told else 1)


def _list_folders(repo: str, revision: str) -> Iterator[Path]:
    """Yield the folders that may have the files of a repository."""
    owner = _locate_cache() / f"models--{repo.replace('/', '--')}"
    with suppress(OSError, ValueError):
        is_commit = _COMMIT.fullmatch(revision) is not None
        path = owner / "refs" / revision
        inside = path.resolve().is_relative_to((owner / "refs").resolve())
        commit = revision if is_commit else path.read_text(encoding="ascii").strip() if inside else ""
        if _COMMIT.fullmatch(commit):
            snapshot = owner / "snapshots" / commit
            if snapshot.is_dir() and _is_contained(snapshot, owner):
                yield snapshot
    if revision == "main" and "/" in repo:
        for root in LM_STUDIO:
            folder = Path(root).expanduser() / repo
            with suppress(OSError):
                if folder.is_dir() and _is_contained(folder, folder):
                    yield folder


def _locate_cache() -> Path:
    """Return the folder of huggingface_hub; it is read here, since importing the library takes most of a second."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()


def _locate_llama() -> Path:
    """Return the folder of llama.cpp."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("LLAMA_CACHE") or f"{cache}/llama.cpp").expanduser()


def _is_contained(folder: Path, owner: Path) -> bool:
    """Return whether all files of a folder lie within ``owner``, wherever links lead."""
    root = owner.resolve()
    return all(path.resolve().is_relative_to(root) for path in _walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of those in it.

    Raises:
        OSError: if there are too many.
    """
    for number, path in enumerate((*folder.glob("*"), *folder.glob("*/*"))):
        if number == MOST_FILES:
            raise OSError(f"{folder} has more than {MOST_FILES} files")
        yield path


def _list_files(folder: Path) -> dict[str, LocalFile]:
    """Return the GGUF files of a folder by name."""
    found = {path.relative_to(folder).as_posix(): path for path in _walk(folder) if path.is_file()}
    return {name: _describe(path, name) for name, path in found.items() if is_gguf(name)}


def _list_llama(repo: str) -> dict[str, LocalFile]:
    """Return the GGUF files of a repository in the cache of llama.cpp, which has one folder for all."""
    folder, prefix = _locate_llama(), f"{repo.replace('/', '_')}_"
    with suppress(OSError):
        names = {path.name.removeprefix(prefix): path for path in _walk(folder) if path.name.startswith(prefix)}
        return {name: _describe(path, name) for name, path in names.items() if is_gguf(name) and path.is_file()}
    return {}


def _describe(path: Path, name: str) -> LocalFile:
    digest = path.resolve().name if path.is_symlink() else ""
    known = digest if _DIGEST.fullmatch(digest) else ""
    return LocalFile(path.resolve(), RemoteFile(PurePosixPath(name).as_posix(), path.stat().st_size, known))
