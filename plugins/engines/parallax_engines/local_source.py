"""Finds what to install in another environment so that it has the same Parallax as this one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

CORE = "parallax-core"
OURS = "parallax-"
"""The prefix of the distributions whose versions must agree."""


class _FolderInfo(msgspec.Struct):
    editable: bool = False


class _DirectUrl(msgspec.Struct):
    """The file ``direct_url.json``, written by pip for installs from a path or URL."""

    url: str
    dir_info: _FolderInfo | None = None


def list_sources(distribution: str) -> list[str]:
    """Return pip's arguments that install ``distribution`` and its dependencies of Parallax as they are here.

    A source checkout is installed from its folder, editable if it is so here; anything else by its version.
    """
    return [argument for name in find_family(distribution) for argument in _describe(name)]


def find_family(distribution: str) -> list[str]:
    """Return `CORE`, ``distribution``, and its dependencies of Parallax that are installed here, each once."""
    found = [CORE]
    pending = [distribution]
    while pending:
        name = pending.pop()
        if name in found and name != distribution:
            continue
        if name not in found:
            found.append(name)
        pending += [each for each in _list_dependencies(name) if each not in found]
    return found


def _list_dependencies(name: str) -> Iterator[str]:
    for requirement in metadata.requires(name) or ():
        text, _, marker = requirement.partition(";")
        needed = re.split(r"[^\w.-]", text.strip(), maxsplit=1)[0].lower()
        if needed.startswith(OURS) and "extra" not in marker:
            yield needed


def _describe(name: str) -> list[str]:
    found = metadata.distribution(name)
    text = found.read_text("direct_url.json")
    if text is not None:
        direct = msgspec.json.decode(text, type=_DirectUrl)
        path = Path(unquote(urlsplit(direct.url).path))
        if direct.url.startswith("file:") and path.exists():
            is_editable = direct.dir_info is not None and direct.dir_info.editable
            return ["--editable", str(path)] if is_editable else [str(path)]
    return [f"{name}=={found.version}"]
