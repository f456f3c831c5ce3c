"""Models of the Hugging Face hub: ``hf:org/name``, with ``@revision`` and, in GGUF, ``:Q4_K_M``.

The client of the hub (`hub_client`) is imported only when something must be downloaded, since importing huggingface_hub
takes most of a second. Files are written by our own code (`download`), since huggingface_hub 2 starts again from the
first byte after an interruption.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_core.api import ModelFolder, ParallaxError, Progress, SourceContext, StoredModel, UnknownName, silent
from parallax_source_hub import gguf_download
from parallax_source_hub.download import Download, Incoming
from parallax_source_hub.gguf_download import GgufDownload
from parallax_source_hub.gguf_files import choose_gguf
from parallax_source_hub.model_cache import CachedModel, ModelCache
from parallax_source_hub.model_download import IsWanted, ModelDownload, has_files, has_tensors
from parallax_source_hub.model_files import choose_candidates
from parallax_source_hub.partial_file import RemoteFile
from parallax_source_hub.stores import LocalFile, find_folder, find_gguf, list_digests

if TYPE_CHECKING:
    from parallax_source_hub.client import HubClient

LOCAL = "local"
"""The beginning of what stands for the commit of a model of another program."""
PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Seconds to wait before each retry of a transfer without progress."""
_KIND = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_REPO = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository at a revision: a branch, a tag or a commit."""

    repo: str
    revision: str = "main"
    kind: str = ""
    """The quantisation of its GGUF files that is meant; empty: the model is in safetensors."""

    @staticmethod
    def parse(name: str) -> HubName:
        """Read ``org/name``, ``org/name@revision``, and either with ``:QUANTISATION``.

        Raises:
            UnknownName: if ``name`` cannot be the name of a repository.
        """
        place, colon, kind = name.partition(":")
        repo, at, revision = place.partition("@")
        is_repo = _REPO.fullmatch(repo) and "--" not in repo and ".." not in repo
        if not is_repo or (at and not revision) or (colon and not _KIND.fullmatch(kind)):
            message = f"{name!r} is not a valid name of a hub model"
            hint = "write ORG/NAME or ORG/NAME@REVISION, with :Q4_K_M for GGUF files; a folder is written file:PATH"
            raise UnknownName(message, hint)
        return HubName(repo, revision or "main", kind.upper())

    @property
    def place(self) -> str:
        """The name without the quantisation."""
        return self.repo if self.revision == "main" else f"{self.repo}@{self.revision}"

    def __str__(self) -> str:
        return f"{self.place}:{self.kind}" if self.kind else self.place


Fetch = Callable[[ModelDownload | GgufDownload], None]
"""Fetches what is wanted of a model."""


class HubSource:
    """Downloads models of the hub into its folder, lists and removes them.

    ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_OFFLINE``, ``HF_HOME`` and ``HF_HUB_CACHE`` have the same meaning as in
    huggingface_hub. What huggingface_hub, llama.cpp or LM Studio has whole on this machine is used where it lies.
    """

    scheme = "hf"

    def __init__(self, context: SourceContext, pauses_s: Sequence[float] = PAUSES_S) -> None:
        """Store models in ``context.folder``; wait ``pauses_s`` seconds before the retries of a broken transfer."""
        self._folder = context.folder
        self._cache = ModelCache(context.folder)
        self._pauses_s = pauses_s

    def find(self, name: str) -> ModelFolder | None:
        """Return the model's folder if it is complete on this machine."""
        wanted = self._parse(name)
        return self._describe(wanted) if self._cache.find(str(wanted)) else self._find_folder(wanted)

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        """Return the model's folder, downloading what is missing; see `ModelSource.fetch`.

        Raises:
            UnknownName: if there is no such repository or revision.
            ParallaxError: if it is gated, unreachable, damaged or not a safetensors model, or the disk is full.
        """
        return self._obtain(name, progress, lambda _: False, lambda download: download.fetch_all())

    def fetch_without_weights(self, name: str, progress: Progress) -> ModelFolder:
        """Return the model's folder without its weights; see `PartialSource.fetch_without_weights` and `fetch`."""
        return self._obtain(name, progress, self._has_files, lambda download: download.fetch_without_weights())

    def fetch_tensors(self, name: str, is_wanted: IsWanted, progress: Progress) -> ModelFolder:
        """Return the model's folder with the wanted tensors; see `PartialSource.fetch_tensors` and `fetch`."""

        def is_here(record: CachedModel) -> bool:
            folder = self._cache.locate(record.name)
            if record.sources:
                return gguf_download.has_tensors(folder, is_wanted)
            return has_tensors(folder, record, is_wanted)

        return self._obtain(name, progress, is_here, lambda download: download.fetch_tensors(is_wanted))

    def find_partial(self, name: str) -> StoredModel | None:
        """Return the model if only a part of it is on this machine."""
        return self._cache.find_partial(str(self._parse(name)))

    def stored(self) -> Sequence[StoredModel]:
        """Return the models that are complete on this machine, sorted by name."""
        return self._cache.stored()

    def stored_partial(self) -> Sequence[StoredModel]:
        """Return the models of which only a part is on this machine, sorted by name."""
        return self._cache.stored_partial()

    def remove(self, name: str) -> int:
        """Delete a complete or partial model, and return the bytes freed.

        Raises:
            UnknownName: if it is not stored here.
        """
        wanted = self._parse(name)
        key = str(wanted)
        if not self._cache.locate(key).is_dir() and (found := self._find_folder(wanted)):
            message = f"{name} is not stored by Parallax, but by another program in {found.path}"
            raise UnknownName(message, "delete it with the program that downloaded it")
        with self._cache.lock(key, silent):
            return self._cache.remove(key)

    def _parse(self, name: str) -> object:
        """Return what a name stands for; as a text it is the name in full.

        Raises:
            UnknownName: if it cannot be a model of this source.
        """
        return HubName.parse(name)

    def _find_folder(self, wanted: object) -> ModelFolder | None:
        """Return the model's folder if another program has it whole in the standard layout."""
        assert isinstance(wanted, HubName), "it is what this source parses"
        path = None if wanted.kind else find_folder(wanted.repo, wanted.revision)
        return ModelFolder(path=path, ref=f"hf:{wanted}", listed_weights=list_digests(path)) if path else None

    def _obtain(
        self,
        name: str,
        progress: Progress,
        is_here: Callable[[CachedModel], bool],
        fetch: Fetch,
    ) -> ModelFolder:
        """Return the model's folder, after ``fetch`` unless it is complete or ``is_here`` accepts its record."""
        wanted = self._parse(name)
        key = str(wanted)
        if not self._cache.locate(key).is_dir() and (found := self._find_folder(wanted)):
            return found
        try:
            if not self._is_ready(key, is_here):
                with self._cache.lock(key, progress):
                    # Another process may have fetched it while this one waited for the lock.
                    if not self._is_ready(key, is_here):
                        self._download(wanted, progress, fetch)
        except OSError as error:
            message = f"cannot write to {self._folder}: {error.strerror or error}"
            raise ParallaxError(message, "free some space, or set PARALLAX_HOME to another disk") from error
        return self._describe(wanted)

    def _describe(self, wanted: object) -> ModelFolder:
        key = str(wanted)
        path, listed = self._cache.locate(key), self._cache.list_weights(key)
        return ModelFolder(path=path, ref=f"{self.scheme}:{wanted}", listed_weights=listed)

    def _is_ready(self, key: str, is_here: Callable[[CachedModel], bool]) -> bool:
        if self._cache.find(key):
            return True
        begun = self._cache.read_begun(key)
        return begun is not None and is_here(begun)

    def _has_files(self, record: CachedModel) -> bool:
        folder = self._cache.locate(record.name)
        return gguf_download.has_files(folder) if record.sources else has_files(folder, record)

    def _use(self, name: str, files: Sequence[LocalFile], progress: Progress, fetch: Fetch) -> None:
        """Make a model of GGUF files that another program has; links to them stand for downloaded ones."""
        state = "; ".join(f"{file.path} {file.path.stat().st_size} {file.path.stat().st_mtime_ns}" for file in files)
        record = self._cache.begin(name, f"{LOCAL} {state}", [], [file.remote for file in files])
        for file in files:
            link = self._cache.locate(name) / gguf_download.FOLDER / file.remote.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            _link(link, file.path)
        fetch(GgufDownload(record, self._cache, Download(_refuse, ()), progress))

    def _download(self, wanted: object, progress: Progress, fetch: Fetch) -> None:
        assert isinstance(wanted, HubName), "it is what this source parses"
        name = str(wanted)
        record = self._cache.read_begun(name)
        is_begun = record is not None and not record.commit.startswith(LOCAL) and self._cache.has_weights(name)
        if wanted.kind and not is_begun and (local := self._find_gguf(wanted)):
            self._use(name, local, progress, fetch)
            return
        client = self._load_client()
        if is_begun and record is not None:
            # It is finished at the commit where it was begun, wherever its branch points now.
            remote = client.return_to(wanted.repo, record.commit, record.sources or record.files)
        else:
            remote = client.connect(wanted.repo, wanted.revision)
            sources = choose_gguf(wanted.place, wanted.kind, remote.files) if wanted.kind else []
            files = [] if wanted.kind else choose_candidates(name, remote.files)
            record = self._cache.begin(name, remote.commit, files, sources)
        try:
            make = GgufDownload if wanted.kind else ModelDownload
            fetch(make(record, self._cache, Download(remote.open, self._pauses_s), progress))
        except UnknownName as error:
            message = f"{name} was begun at commit {record.commit}, which the hub no longer has"
            hint = f"delete it with `parallax models rm {self.scheme}:{name}` and fetch it again"
            raise ParallaxError(message, hint) from error

    def _find_gguf(self, wanted: HubName) -> list[LocalFile]:
        """Return the GGUF files of a model that another program has."""
        return find_gguf(wanted.repo, wanted.revision, wanted.kind)

    def _load_client(self) -> type[HubClient]:
        """Import the client of the hub."""
        from parallax_source_hub.client import HubClient

        return HubClient


def _link(link: Path, target: Path) -> None:
    """Make a link to a file: a hard one where the system lets only administrators make others."""
    try:
        link.symlink_to(target)
    except OSError:
        link.hardlink_to(target)


@contextmanager
def _refuse(file: RemoteFile, start: int, stop: int) -> Iterator[Incoming]:
    """Refuse to download what another program had a moment ago; see `parallax_source_hub.download.Opener`."""
    del start, stop
    raise ParallaxError(f"{file.name} was deleted while it was read", "run the command again")
    yield  # type: ignore[unreachable]  # it is a generator
