"""The source ``ollama``: models that Ollama has on this machine, by the names it gives them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from parallax_core.api import ParallaxError, Progress, StoredModel, UnknownName, Unsupported
from parallax_source_hub.partial_file import RemoteFile
from parallax_source_hub.source import Fetch, HubSource
from parallax_source_hub.stores import LocalFile

DEFAULT_HOST, DEFAULT_OWNER, DEFAULT_TAG = "registry.ollama.ai", "library", "latest"
MODEL, ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
MOST_BYTES = 2**20
"""The most bytes of a manifest, which has a few hundred."""
MOST_LISTED = 40
_PART = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class OllamaName:
    """A model of Ollama."""

    host: str
    owner: str
    model: str
    tag: str

    @staticmethod
    def parse(name: str) -> OllamaName:
        """Read ``NAME``, ``OWNER/NAME`` or ``HOST/OWNER/NAME``, with ``:TAG`` if given.

        Raises:
            UnknownName: if ``name`` cannot be the name of a model.
        """
        place, colon, tag = name.partition(":")
        parts = place.split("/")
        whole = [*[DEFAULT_HOST, DEFAULT_OWNER][: 3 - len(parts)], *parts, tag if colon else DEFAULT_TAG]
        if len(parts) > 3 or ".." in name or not all(_PART.fullmatch(part) for part in whole):  # noqa: PLR2004
            message = f"{name!r} is not a valid name of a model of Ollama"
            raise UnknownName(message, "write a name of `ollama list`, such as ollama:llama3.2:1b")
        return OllamaName(*whole)

    def __str__(self) -> str:
        shown = [self.host, self.owner, self.model]
        for default in (DEFAULT_HOST, DEFAULT_OWNER):
            if shown[0] == default:
                shown = shown[1:]
        return f"{'/'.join(shown)}:{self.tag}"


class OllamaSource(HubSource):
    """Makes standard folders of the models of Ollama, without a copy of their files; downloads nothing.

    ``OLLAMA_MODELS`` has the same meaning as in Ollama.
    """

    scheme = "ollama"

    def _parse(self, name: str) -> OllamaName:
        return OllamaName.parse(name)

    def _find_folder(self, wanted: object) -> None:
        """Return None: Ollama has no folders in the standard layout."""

    def _download(self, wanted: object, progress: Progress, fetch: Fetch) -> None:
        assert isinstance(wanted, OllamaName), "it is what this source parses"
        self._use(str(wanted), [read_manifest(locate_store(), wanted)], progress, fetch)


def locate_store() -> Path:
    """Return the folder of Ollama's models."""
    return Path(os.environ.get("OLLAMA_MODELS") or "~/.ollama/models").expanduser()


def list_models() -> list[StoredModel]:
    """Return the models of Ollama that this source uses, sorted by name."""
    found = []
    for name in list_names(locate_store()):
        with suppress(ParallaxError):
            file = read_manifest(locate_store(), name)
            found.append(StoredModel(name=str(name), path=file.path, size_bytes=file.remote.size))
    return sorted(found, key=lambda model: model.name)


def read_manifest(store: Path, name: OllamaName) -> LocalFile:
    """Return the GGUF file of a model.

    Raises:
        UnknownName: if Ollama does not have it; the hint lists its models.
        Unsupported: if it is no GGUF file alone.
        ParallaxError: if its manifest is damaged, or the file is not there.
    """
    path = store / "manifests" / name.host / name.owner / name.model / name.tag
    if not path.is_file():
        names = sorted(map(str, list_names(store)))
        listed = f"it has {', '.join(names[:MOST_LISTED])}" if names else f"there is none in {store}"
        raise UnknownName(
            f"Ollama has no model {name} on this machine", f"{listed}; fetch it with `ollama pull {name}`"
        )
    layers = read_layers(path)
    if ADAPTER in layers:
        raise Unsupported(f"{name} has an adapter, which is not read", "use the model that it was made from")
    if MODEL not in layers:
        raise Unsupported(f"{name} has no GGUF file", "choose a model that runs on this machine")
    blob = store / "blobs" / f"sha256-{layers[MODEL]}"
    if not blob.is_file():
        raise ParallaxError(f"the file of {name} is not in {blob.parent}", f"fetch it again with `ollama pull {name}`")
    return LocalFile(blob.resolve(), RemoteFile("model.gguf", blob.stat().st_size, layers[MODEL]))


def read_layers(path: Path) -> dict[str, str]:
    """Return the digests in a manifest by the kind of their content, in hexadecimal.

    Raises:
        ParallaxError: if it is damaged.
    """
    try:
        with path.open("rb") as file:
            return parse_layers(file.read(MOST_BYTES + 1))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        message = f"the manifest {path} is damaged: {error}"
        raise ParallaxError(message, "fetch the model again with `ollama pull`") from error


def parse_layers(text: bytes) -> dict[str, str]:
    """Return the digests in a manifest, the first of each kind; raise ValueError and others if it is damaged."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    found: dict[str, str] = {}
    for layer in json.loads(text)["layers"]:
        digest = _DIGEST.fullmatch(layer["digest"])
        if digest is None:
            raise ValueError(f"{str(layer['digest'])[:80]!r} is not the digest of a file")
        found.setdefault(str(layer["mediaType"]), digest[1])
    return found


def list_names(store: Path) -> Iterator[OllamaName]:
    """Yield the models of Ollama."""
    for path in (store / "manifests").glob("*/*/*/*"):
        parts = path.relative_to(store / "manifests").parts
        if path.is_file() and all(map(_PART.fullmatch, parts)):
            yield OllamaName(*parts)
