"""Resolves the model names that users write to sources, and to folders on disk."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from parallax_core.base.errors import ParallaxError, PluginConflict, UnknownName
from parallax_core.base.offline import is_offline
from parallax_core.config.home import models_folder
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.source import (
    ModelFolder,
    ModelSource,
    PartialSource,
    SourceContext,
    SourceSpec,
    StoredModel,
)
from parallax_core.plugins.discovery import DISABLED_VARIABLE
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import DISTRIBUTIONS, Offer

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?(:[\w.-]+)?")
"""Matches a name on the hub, with a revision and, after a colon, the quantisation of GGUF files."""


@dataclass(frozen=True, slots=True)
class Located:
    """A model's source, and its name there."""

    source: str
    name: str


class Catalog:
    """All sources of models, under one naming scheme.

    A model is written as ``source:name``, as an alias that a source offers, as a folder, or as a hub id ``org/name``;
    tried in this order.
    """

    def __init__(self, host: PluginHost) -> None:
        self._registry = host.sources()
        self._sources: dict[str, ModelSource] = {}

    def locate(self, text: str) -> Located:
        """Return the source of the model that ``text`` names, and its name there.

        Raises:
            UnknownName: if ``text`` matches no form; the hint names similar aliases.
            PluginConflict: if several plugins offer the alias.
        """
        scheme, colon, rest = text.partition(":")
        if colon and rest and (scheme in self._registry.names() or f"source {scheme}" in DISTRIBUTIONS):
            return Located(scheme, rest)
        if alias := self._locate_alias(text):
            return alias
        if text.startswith((".", "/", "~")) or Path(text).is_dir():
            return Located("file", text)
        if HUB_ID.fullmatch(text):
            return Located("hf", text)
        raise self._unknown(text)

    def takes_paths(self, located: Located) -> bool:
        """Return whether a model is named by its path on this machine."""
        spec: SourceSpec = self._registry.get(located.source).spec
        return spec.takes_paths

    def find(self, text: str) -> ModelFolder | None:
        """Return the model's folder if it is complete on this machine."""
        located = self.locate(text)
        return self._source(located.source).find(located.name)

    def fetch(self, text: str, progress: Progress) -> ModelFolder:
        """Return the model's folder, downloading and converting the missing files."""
        return self._fetch_whole(self.locate(text), progress)

    def fetch_without_weights(self, text: str, progress: Progress) -> ModelFolder:
        """Return the model's folder, fetched without its weights if the source can do that, else as a whole."""
        located = self.locate(text)
        source = self._source(located.source)
        if isinstance(source, PartialSource):
            return source.fetch_without_weights(located.name, progress)
        return self._fetch_whole(located, progress)

    def fetch_tensors(self, text: str, is_wanted: Callable[[str], bool], progress: Progress) -> ModelFolder:
        """Return the model's folder with at least the wanted tensors; the source may fetch all of them."""
        located = self.locate(text)
        source = self._source(located.source)
        if isinstance(source, PartialSource):
            return source.fetch_tensors(located.name, is_wanted, progress)
        return self._fetch_whole(located, progress)

    def find_partial(self, text: str) -> StoredModel | None:
        """Return the model if only a part of it is on this machine."""
        located = self.locate(text)
        source = self._source(located.source)
        return source.find_partial(located.name) if isinstance(source, PartialSource) else None

    def find_place(self, text: str) -> Path | None:
        """Return the folder of the model if it, or a part of it, is on this machine: the same for each of its names."""
        found = self.find(text) or self.find_partial(text)
        return found.path if found is not None else None

    def can_fetch_parts(self, text: str) -> bool:
        """Return whether the model's source can fetch a part of it."""
        return isinstance(self._source(self.locate(text).source), PartialSource)

    def qualify(self, text: str) -> str:
        """Return the model's full name, ``source:name``, which does not depend on aliases."""
        located = self.locate(text)
        return f"{located.source}:{located.name}"

    def remove(self, text: str) -> int:
        """Delete a stored model, and return the bytes freed."""
        located = self.locate(text)
        return self._source(located.source).remove(located.name)

    def stored(self) -> list[tuple[str, StoredModel]]:
        """Return every stored model with the name of its source."""
        return [(name, model) for name in self._registry.names() for model in self._source(name).stored()]

    def stored_partial(self) -> list[tuple[str, StoredModel]]:
        """Return every model of which only a part is stored, with the name of its source."""
        sources = [(name, self._source(name)) for name in self._registry.names()]
        parts = [(name, source.stored_partial()) for name, source in sources if isinstance(source, PartialSource)]
        return [(name, model) for name, models in parts for model in models]

    def aliases(self) -> dict[str, str]:
        """Return the full name of every alias."""
        found = sorted(self._aliases().items())
        return {alias: " or ".join(f"{offer.spec.name}:{name}" for offer, name in each) for alias, each in found}

    def _fetch_whole(self, located: Located, progress: Progress) -> ModelFolder:
        """Return the folder of a whole model; offline, only if it is here, as a source of parts checks itself."""
        source = self._source(located.source)
        if is_offline() and not isinstance(source, PartialSource) and source.find(located.name) is None:
            message = f"{located.source}:{located.name} is not complete on this machine, and it is not to be fetched"
            raise ParallaxError(message, "leave out --offline, or unset PARALLAX_OFFLINE")
        return source.fetch(located.name, progress)

    def _aliases(self) -> dict[str, list[tuple[Offer[SourceSpec], str]]]:
        found: dict[str, list[tuple[Offer[SourceSpec], str]]] = {}
        for offer in self._registry.offers:
            for alias, name in offer.spec.aliases.items():
                found.setdefault(alias, []).append((offer, name))
        return found

    def _locate_alias(self, alias: str) -> Located | None:
        match self._aliases().get(alias, []):
            case []:
                return None
            case [(offer, name)]:
                return Located(offer.spec.name, name)
            case [(one, _), *_, (other, _)]:
                message = f"alias {alias!r} is offered by both {one.plugin.origin} and {other.plugin.origin}"
                hint = f"disable one, with {DISABLED_VARIABLE}={other.plugin.distribution}, or write source:name"
                raise PluginConflict(message, hint)
        raise AssertionError("the cases cover all lengths")

    def _source(self, name: str) -> ModelSource:
        if name not in self._sources:
            offer: Offer[SourceSpec] = self._registry.get(name)
            self._sources[name] = offer.load(offer.spec.factory)(SourceContext(folder=models_folder() / name))
        return self._sources[name]

    def _unknown(self, text: str) -> UnknownName:
        scheme, colon, _ = text.partition(":")
        if colon and not re.search(r"[/\\]", scheme):
            self._registry.get(scheme)  # raises with the sources there are, and those that could not be loaded
        near = get_close_matches(text, self._aliases(), n=1)
        ways = "give a folder, a hub id such as org/name, pypi:NAME, or an alias of `parallax models list`"
        return UnknownName(f"no model named {text!r}", f"did you mean {near[0]!r}?" if near else ways)
