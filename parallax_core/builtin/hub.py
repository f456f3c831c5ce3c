"""Models of the Hugging Face hub: ``hf:org/name`` or ``hf:org/name@revision``.

What speaks to the hub (`remote`) is imported only when something must be downloaded, since importing
huggingface_hub takes most of a second. Writing the files is our own (`transfer`): those of huggingface_hub 2 begin
again from the first byte when the process was interrupted.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.builtin.choice import choose_files, choose_weights
from parallax_core.builtin.layout import check_folder
from parallax_core.builtin.shelf import Shelf
from parallax_core.builtin.transfer import RemoteFile, Transfer
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.source import ModelFolder, SourceContext, StoredModel

PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses between the tries of a transfer that gets nowhere."""
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
            message = f"{name!r} cannot be a model of the hub"
            raise UnknownName(message, "write ORG/NAME or ORG/NAME@REVISION; a folder is written file:PATH")
        return HubName(repo, revision or "main")

    def __str__(self) -> str:
        return self.repo if self.revision == "main" else f"{self.repo}@{self.revision}"


class HubSource:
    """Downloads models of the hub into the folder of its context, and lists and removes them.

    ``HF_ENDPOINT``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE`` mean what they mean to huggingface_hub.
    """

    def __init__(self, context: SourceContext, pauses_s: Sequence[float] = PAUSES_S) -> None:
        """Keep models in ``context.folder``; wait ``pauses_s`` between the tries of a broken transfer."""
        self._folder = context.folder
        self._shelf = Shelf(context.folder)
        self._pauses_s = pauses_s

    def find(self, name: str) -> ModelFolder | None:
        """Return the model's folder if it is complete on this machine."""
        wanted = HubName.parse(name)
        path = self._shelf.find(str(wanted))
        return ModelFolder(path=path, ref=f"hf:{wanted}") if path else None

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        """Return the model's folder, downloading what is missing; see `ModelSource.fetch`.

        Raises:
            UnknownName: if there is no such repository or revision.
            ParallaxError: if it is gated, unreachable, damaged, no safetensors model, or the disk is full.
        """
        wanted = HubName.parse(name)
        try:
            path = self._shelf.find(str(wanted)) or self._obtain(wanted, progress)
        except OSError as error:
            message = f"cannot write to {self._folder}: {error.strerror or error}"
            raise ParallaxError(message, "free some space, or set PARALLAX_HOME to another disk") from error
        return ModelFolder(path=path, ref=f"hf:{wanted}")

    def stored(self) -> Sequence[StoredModel]:
        """Return what is complete on this machine, sorted by name."""
        return self._shelf.stored()

    def remove(self, name: str) -> int:
        """Delete a model, or what an interrupted download left of it, and return the bytes freed.

        Raises:
            UnknownName: if it is not stored here.
        """
        key = str(HubName.parse(name))
        with self._shelf.lock(key):
            return self._shelf.remove(key)

    def _obtain(self, wanted: HubName, progress: Progress) -> Path:
        key = str(wanted)
        with self._shelf.lock(key):
            # Another process may have finished it while we waited for the lock.
            return self._shelf.find(key) or self._download(wanted, progress)

    def _download(self, wanted: HubName, progress: Progress) -> Path:
        from parallax_core.builtin.remote import Remote

        name = str(wanted)
        remote = Remote.connect(wanted.repo, wanted.revision)
        listing = remote.files
        chosen = choose_files(name, listing)
        draft = self._shelf.draft(name, remote.commit)
        transfer = Transfer(remote.open, self._pauses_s)
        for file in chosen:
            transfer.save(file, draft, _ignore)
        chosen += choose_weights(name, listing, draft)
        _check_space(draft, chosen)
        total = sum(file.size for file in chosen)
        done = 0
        for file in chosen:
            transfer.save(file, draft, _reporter(progress, f"download {name}", done, total))
            done += file.size
        check_folder(draft)
        return self._shelf.publish(name, draft, [file.name for file in chosen])


def _reporter(progress: Progress, task: str, before: int, total: int) -> Callable[[int], None]:
    return lambda size: progress(task, before + size, total)


def _ignore(size: int) -> None:
    """Report nothing: the total is not known yet."""


def _check_space(draft: Path, files: Sequence[RemoteFile]) -> None:
    here = sum(path.stat().st_size for path in draft.iterdir())
    needed = sum(file.size for file in files) - here
    free = shutil.disk_usage(draft).free
    if needed > free:
        message = f"the download needs {needed / 1e9:.1f} GB, and {draft} has {free / 1e9:.1f} GB free"
        raise ParallaxError(message, "free some space, or set PARALLAX_HOME to a folder on another disk")
