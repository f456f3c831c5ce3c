"""The models that the sources of a server have: on its machine, and elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from parallax_core.api import (
    InvalidRequest,
    ParallaxError,
    Progress,
    SourceContext,
    UnknownName,
    Unsupported,
    models_folder,
)
from parallax_core.api.cli import PluginHost
from parallax_core.api.deployment import Catalog, find_family
from parallax_core.api.dialect import ChangeRefused, ModelEntry, ResponseModel


class StoredModelReply(ResponseModel):
    """A model on the server's machine."""

    name: str
    """Its source, a colon, and its name there, as `POST /v1/cluster/models` takes it."""
    size_bytes: int
    total_bytes: int | None
    """Of the whole model, if only a part of it is here; null: it is whole."""


class FormatReply(ResponseModel):
    """One of the formats of a model."""

    name: str
    """What to load for it."""
    size_bytes: int
    """Of its weights, as they are stored."""


class FoundModelReply(ResponseModel):
    """A model that a source has found elsewhere."""

    name: str
    downloads: int
    """Of late, as the source counts them."""
    parameters: int | None
    """Null: it does not say."""
    is_gated: bool
    """Whether its licence has to be accepted there first."""
    is_known: bool | None
    """Whether a family that is installed describes it; null: it does not say of which it is."""


@runtime_checkable
class SearchableSource(Protocol):
    """A `ModelSource` that finds models which are not on this machine."""

    def search(self, text: str, most: int) -> Sequence[Mapping[str, Any]]:
        """Return up to ``most`` models whose names contain a text, the most fetched first.

        Each has a ``name``, and ``downloads``, ``parameters`` (or None), ``is_gated`` and ``architectures``.

        Raises:
            ParallaxError: with a hint, if the place of the models cannot be asked.
        """

    def list_formats(self, name: str) -> Mapping[str, int]:
        """Return the formats that a model has, by what to load for each, with the bytes of its weights.

        Raises:
            UnknownName: if there is no such model.
            ParallaxError: with a hint, if the place of the models cannot be asked.
        """


class ServerCatalog:
    """The models of the sources of this installation. Methods may wait for disks and networks; any thread may call."""

    def __init__(self, plugins: PluginHost | None = None) -> None:
        """Ask the sources of ``plugins``; None: those of all installed plugins, found at the first question."""
        self._plugins = plugins
        self._lock = threading.Lock()

    def list_stored(self) -> list[StoredModelReply]:
        """Return the models on this machine, and those of which a part is."""
        catalog = Catalog(self._find_plugins())
        found = [*catalog.stored(), *catalog.stored_partial()]
        shown = [StoredModelReply(f"{source}:{each.name}", each.size_bytes, each.total_bytes) for source, each in found]
        return sorted(shown, key=lambda each: each.name)

    def list_aliases(self) -> dict[str, str]:
        """Return the full name of every alias."""
        return Catalog(self._find_plugins()).aliases()

    def fetch(self, name: str, progress: Progress) -> None:
        """Fetch a model, or the missing part of one, to this machine.

        Raises:
            ParallaxError: if it is not found, or cannot be fetched.
        """
        Catalog(self._find_plugins()).fetch(name, progress)

    def remove(self, name: str, used: Iterable[ModelEntry]) -> int:
        """Delete a model from this machine, and return the bytes freed.

        Raises:
            UnknownName: if it is not here.
            InvalidRequest: if it is not the source's to delete, such as a folder of the user.
            ChangeRefused: if a server uses it: one of the models ``used``.
        """
        catalog = Catalog(self._find_plugins())
        place = _find_place(catalog, name)
        for each in used:
            if place is not None and _find_place(catalog, each.source) == place:
                raise ChangeRefused(f"{name} is loaded as {each.id!r}", "unload it first")
        try:
            return catalog.remove(name)
        except Unsupported as error:
            raise InvalidRequest(error.message, "model", error.hint) from error

    def list_searched(self) -> list[str]:
        """Return the names of the sources that can be searched."""
        return [name for name in self._find_plugins().sources().names() if self._open(name)]

    def search(self, text: str, most: int) -> list[FoundModelReply]:
        """Return models that are elsewhere; see `SearchableSource.search`."""
        sources = [source for name in self.list_searched() if (source := self._open(name))]
        found = {each["name"]: each for source in sources for each in source.search(text, most)}
        return [self._show(each) for each in list(found.values())[:most]]

    def list_formats(self, name: str) -> list[FormatReply]:
        """Return the formats of a model, the smallest first.

        Raises:
            UnknownName: if its source finds no models elsewhere; or see `SearchableSource.list_formats`.
        """
        located = Catalog(self._find_plugins()).locate(name)
        if (source := self._open(located.source)) is None:
            raise UnknownName(f"models of {located.source!r} are not looked for elsewhere")
        found = source.list_formats(located.name)
        return [FormatReply(each, size) for each, size in sorted(found.items(), key=lambda item: item[1])]

    def _open(self, name: str) -> SearchableSource | None:
        try:
            offer = self._find_plugins().sources().get(name)
            source: object = offer.load(offer.spec.factory)(SourceContext(folder=models_folder() / name))
        except ParallaxError:  # its plugin is broken, which `parallax doctor` says
            return None
        return source if isinstance(source, SearchableSource) else None

    def _show(self, found: Mapping[str, Any]) -> FoundModelReply:
        architectures = found["architectures"]
        is_known = None
        if architectures:
            try:
                is_known = find_family(self._find_plugins(), {"architectures": list(architectures)}) is not None
            except ParallaxError:
                is_known = False
        return FoundModelReply(found["name"], found["downloads"], found["parameters"], found["is_gated"], is_known)

    def _find_plugins(self) -> PluginHost:
        with self._lock:
            if self._plugins is None:
                self._plugins = PluginHost.discover()
            return self._plugins


def _find_place(catalog: Catalog, model: str) -> object:
    try:
        return catalog.find_place(model)
    except ParallaxError:  # such as a folder that is gone, or a name that means nothing
        return None
