"""Finds models that huggingface_hub, llama.cpp and LM Studio have, without changing anything."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from parallax_core.api import ParallaxError
from parallax_core.api.source import INDEX, SINGLE, check_folder
from parallax_source_hub.gguf_files import is_gguf, list_kinds
from parallax_source_hub.partial_file import RemoteFile

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
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
    for folder in _list_folders(repo, revision):
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
    places = [_list_files(folder) for folder in _list_folders(repo, revision)]
    if revision == "main":
        places.append(_list_llama(repo))
    for files in places:
        kinds = list_kinds([file.remote for file in files.values()])
        chosen = next((found for name, found in kinds.items() if name.lower() == kind.lower()), [])
        if chosen and _are_all(chosen):
            return [files[file.name] for file in chosen]
    return []


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
    cache = os.environ.get("LLAMA_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/llama.cpp"
    folder, prefix = Path(cache).expanduser(), f"{repo.replace('/', '_')}_"
    with suppress(OSError):
        names = {path.name.removeprefix(prefix): path for path in _walk(folder) if path.name.startswith(prefix)}
        return {name: _describe(path, name) for name, path in names.items() if is_gguf(name) and path.is_file()}
    return {}


def _describe(path: Path, name: str) -> LocalFile:
    digest = path.resolve().name if path.is_symlink() else ""
    known = digest if _DIGEST.fullmatch(digest) else ""
    return LocalFile(path.resolve(), RemoteFile(PurePosixPath(name).as_posix(), path.stat().st_size, known))
