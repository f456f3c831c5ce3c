"""Models of the Hugging Face hub: ``hf:org/name`` or ``hf:org/name@revision``.

The client of the hub (`hub_client`) is imported only when something must be downloaded, since importing huggingface_hub
takes most of a second. Files are written by our own code (`download`), since huggingface_hub 2 starts again from the
first byte after an interruption.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parallax_core.api import ModelFolder, ParallaxError, Progress, SourceContext, StoredModel, UnknownName, silent
from parallax_source_hub.download import Download
from parallax_source_hub.model_cache import CachedModel, ModelCache
from parallax_source_hub.model_download import IsWanted, ModelDownload, has_files, has_tensors
from parallax_source_hub.model_files import choose_candidates

PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Seconds to wait before each retry of a transfer without progress."""
_REPO = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository at a revision: a branch, a tag or a commit."""

    repo: str
    revision: str = "main"

    @staticmethod
    def parse(name: str) -> HubName:
        """Read ``org/name`` or ``org/name@revision``.

        Raises:
            UnknownName: if ``name`` cannot be the name of a repository.
        """
        repo, at, revision = name.partition("@")
        if not _REPO.fullmatch(repo) or "--" in repo or ".." in repo or (at and not revision):
            message = f"{name!r} is not a valid name of a hub model"
            raise UnknownName(message, "write ORG/NAME or ORG/NAME@REVISION; a folder is written file:PATH")
        return HubName(repo, revision or "main")

    def __str__(self) -> str:
        return self.repo if self.revision == "main" else f"{self.repo}@{self.revision}"


class HubSource:
    """Downloads models of the hub into its folder, lists and removes them.

    ``HF_ENDPOINT``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE`` have the same meaning as in huggingface_hub.
    """

    def __init__(self, context: SourceContext, pauses_s: Sequence[float] = PAUSES_S) -> None:
        """Store models in ``context.folder``; wait ``pauses_s`` seconds before the retries of a broken transfer."""
        self._folder = context.folder
        self._cache = ModelCache(context.folder)
        self._pauses_s = pauses_s

    def find(self, name: str) -> ModelFolder | None:
        """Return the model's folder if it is complete on this machine."""
        wanted = HubName.parse(name)
        return self._describe(wanted) if self._cache.find(str(wanted)) else None

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        """Return the model's folder, downloading what is missing; see `ModelSource.fetch`.

        Raises:
            UnknownName: if there is no such repository or revision.
            ParallaxError: if it is gated, unreachable, damaged or not a safetensors model, or the disk is full.
        """
        return self._obtain(name, progress, lambda _: False, ModelDownload.fetch_all)

    def fetch_without_weights(self, name: str, progress: Progress) -> ModelFolder:
        """Return the model's folder without its weights; see `PartialSource.fetch_without_weights` and `fetch`."""
        return self._obtain(name, progress, self._has_files, ModelDownload.fetch_without_weights)

    def fetch_tensors(self, name: str, is_wanted: IsWanted, progress: Progress) -> ModelFolder:
        """Return the model's folder with the wanted tensors; see `PartialSource.fetch_tensors` and `fetch`."""

        def is_here(record: CachedModel) -> bool:
            return has_tensors(self._cache.locate(record.name), record, is_wanted)

        return self._obtain(name, progress, is_here, lambda download: download.fetch_tensors(is_wanted))

    def find_partial(self, name: str) -> StoredModel | None:
        """Return the model if only a part of it is on this machine."""
        return self._cache.find_partial(str(HubName.parse(name)))

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
        key = str(HubName.parse(name))
        with self._cache.lock(key, silent):
            return self._cache.remove(key)

    def _obtain(
        self,
        name: str,
        progress: Progress,
        is_here: Callable[[CachedModel], bool],
        fetch: Callable[[ModelDownload], None],
    ) -> ModelFolder:
        """Return the model's folder, after ``fetch`` unless it is complete or ``is_here`` accepts its record."""
        wanted = HubName.parse(name)
        key = str(wanted)
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

    def _describe(self, wanted: HubName) -> ModelFolder:
        key = str(wanted)
        path, listed = self._cache.locate(key), self._cache.list_weights(key)
        return ModelFolder(path=path, ref=f"hf:{wanted}", listed_weights=listed)

    def _is_ready(self, key: str, is_here: Callable[[CachedModel], bool]) -> bool:
        if self._cache.find(key):
            return True
        begun = self._cache.read_begun(key)
        return begun is not None and is_here(begun)

    def _has_files(self, record: CachedModel) -> bool:
        return has_files(self._cache.locate(record.name), record)

    def _download(self, wanted: HubName, progress: Progress, fetch: Callable[[ModelDownload], None]) -> None:
        from parallax_source_hub.client import HubClient

        name = str(wanted)
        record = self._cache.read_begun(name)
        if record is not None and self._cache.has_weights(name):
            # It is finished at the commit where it was begun, wherever its branch points now.
            remote = HubClient.return_to(wanted.repo, record.commit, record.files)
        else:
            remote = HubClient.connect(wanted.repo, wanted.revision)
            record = self._cache.begin(name, remote.commit, choose_candidates(name, remote.files))
        try:
            fetch(ModelDownload(record, self._cache, Download(remote.open, self._pauses_s), progress))
        except UnknownName as error:
            message = f"{name} was begun at commit {record.commit}, which the hub no longer has"
            raise ParallaxError(message, f"delete it with `parallax models rm hf:{name}` and fetch it again") from error
