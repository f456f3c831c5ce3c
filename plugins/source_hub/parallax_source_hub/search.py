"""Finds models of the hub by a part of their names, and the formats in which they are published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parallax_source_hub.model_files import weigh_formats
from parallax_source_hub.source import HubName, HubSource


class SearchableHub(HubSource):
    """A `HubSource` that is searched."""

    def search(self, text: str, most: int) -> list[dict[str, Any]]:
        """Return up to ``most`` models of the hub with weights whose names contain a text, the most fetched first.

        Each has ``name``, ``downloads``, ``parameters`` (or None), ``is_gated`` and ``architectures``.

        Raises:
            ParallaxError: if the hub is not to be asked, cannot be reached, or refuses.
        """
        from parallax_source_hub.client import search_hub

        return [
            {
                "name": each.id,
                "downloads": each.downloads,
                "parameters": weights.total,
                "is_gated": bool(each.gated),
                "architectures": (each.config and each.config.architectures) or [],
            }
            for each in search_hub(text, most)
            if (weights := each.safetensors or each.gguf)
        ]

    def list_formats(self, name: str) -> dict[str, int]:
        """Return the formats of a model of the hub, by what to load for each, with the bytes of its weights.

        Raises:
            UnknownName: if there is no such model.
            ParallaxError: if the hub cannot be reached or refuses.
        """
        from parallax_source_hub.client import HubClient

        wanted = HubName.parse(name)
        files = HubClient.connect(wanted.repo, wanted.revision).files
        return {str(replace(wanted, kind=kind)): size for kind, size in weigh_formats(files).items()}
