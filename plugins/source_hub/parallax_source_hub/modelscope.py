"""The source ``ms``: models of ModelScope, as ``ms:org/name``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_core.api import ModelFolder, StoredModel
from parallax_source_hub.source import HubName, HubSource
from parallax_source_hub.stores import LocalFile, find_whole

if TYPE_CHECKING:
    from parallax_source_hub.client import HubClient

CACHE = "~/.cache/modelscope"
DOT = "___"
"""What its own library writes for a dot in the name of a folder."""


class ModelScopeSource(HubSource):
    """Downloads models of ModelScope, or uses those of its own library where they lie.

    ``MODELSCOPE_ENDPOINT``, ``MODELSCOPE_DOMAIN``, ``MODELSCOPE_API_TOKEN`` and ``MODELSCOPE_CACHE`` have the same
    meaning as in its library.
    """

    scheme = "ms"

    def _find_folder(self, wanted: object) -> ModelFolder | None:
        """Return the model's folder if ModelScope's own library has it whole, of its main branch."""
        assert isinstance(wanted, HubName), "it is what this source parses"
        if wanted.kind or wanted.revision != "main":
            return None
        place = wanted.repo.replace(".", DOT)
        path = next((each for root in locate_roots() if (each := find_whole(root / place))), None)
        return ModelFolder(path=path, ref=f"ms:{wanted}") if path else None

    def _find_gguf(self, wanted: HubName) -> list[LocalFile]:
        """Return no files: those of another hub may be others."""
        del wanted
        return []

    def _load_client(self) -> type[HubClient]:
        """Import the client of ModelScope."""
        from parallax_source_hub.modelscope_client import ModelScopeClient

        return ModelScopeClient


def locate_roots() -> tuple[Path, ...]:
    """Return the folders in which ModelScope's library keeps models, of new and of old releases."""
    hub = Path(os.environ.get("MODELSCOPE_CACHE") or CACHE).expanduser() / "hub"
    return hub / "models", hub


def list_models() -> list[StoredModel]:
    """Return the models of ModelScope's library that this source uses where they lie, sorted by name."""
    folders = (folder for root in locate_roots() for folder in root.glob("*/*") if find_whole(folder))
    found: dict[str, StoredModel] = {}
    for folder in folders:
        name = f"{folder.parent.name}/{folder.name}".replace(DOT, ".")
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        found.setdefault(name, StoredModel(name=name, path=folder, size_bytes=size))
    return [found[name] for name in sorted(found)]
