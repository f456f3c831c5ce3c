"""Makes the `pip install` of a hint work here: names wheels or folders that no index has."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from email import message_from_bytes
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

CORE = "parallax-core"
COMMAND = re.compile(r"(?<!-m )\bpip install\b")
WANTED = re.compile(r"(?P<quote>['\"]?)(?P<name>parallax-[a-z-]*[a-z])(?P<extra>\[\w+\])?(?P=quote)(?![\w-])")
NAME = re.compile(r"[\w.-]+")

Find = Callable[[str], tuple[Path, list[str]] | None]
"""Returns where a distribution is, and its requirements; None: it is not there."""


def localize(hint: str, origin: Path | None, program: str) -> str:
    """Return a hint with pip commands that work here: run by ``program``, with wheels or folders near core's.

    A distribution of this project becomes the path of its wheel or folder, with those that it needs and are missing.
    """
    find = (
        _find_wheel(origin.parent) if origin and origin.suffix == ".whl" else _find_folder(origin) if origin else None
    )
    start, *commands = COMMAND.split(hint)
    return start + "".join(f"{program} install{_name_paths(each, find) if find else each}" for each in commands)


def localize_here(hint: str) -> str:
    """Return a hint whose commands of pip work in the environment of this process."""
    return localize(hint, find_origin(), name_pip()) if COMMAND.search(hint) else hint


def find_origin() -> Path | None:
    """Return the wheel or folder from which core was installed; None: an index had it."""
    try:
        url = urlsplit(json.loads(metadata.distribution(CORE).read_text("direct_url.json") or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, ValueError):
        return None
    origin = Path(url2pathname(url.path))
    return origin if url.scheme == "file" and origin.exists() else None


def name_pip() -> str:
    """Return the command that runs the pip of this environment."""
    found = shutil.which("pip")
    return "pip" if found and Path(found).parent == Path(sys.executable).parent else f"{sys.executable} -m pip"


def _name_paths(command: str, find: Find) -> str:
    def replace(match: re.Match[str]) -> str:
        paths = list(dict.fromkeys(_list_paths(match["name"], find)))  # several may need the same one
        if not paths:
            return match[0]
        return " ".join(map(shlex.quote, [*paths[:-1], paths[-1] + (match["extra"] or "")]))

    return WANTED.sub(replace, command)


def _list_paths(name: str, find: Find) -> Iterator[str]:
    """Yield the paths of a distribution, after those of ours that it needs and that are not installed."""
    if (found := find(name)) is None:
        return
    path, requirements = found
    for each in requirements:
        needed = NAME.match(each)
        if needed and needed[0].startswith("parallax-") and ";" not in each and not _is_installed(needed[0]):
            yield from _list_paths(needed[0], find)
    yield str(path)


def _find_wheel(folder: Path) -> Find:
    def find(name: str) -> tuple[Path, list[str]] | None:
        paths = sorted(folder.glob(f"{name.replace('-', '_')}-*.whl"))
        if not paths:
            return None
        with zipfile.ZipFile(paths[-1]) as wheel:
            [member] = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
            return paths[-1], message_from_bytes(wheel.read(member)).get_all("Requires-Dist") or []

    return find


def _find_folder(root: Path) -> Find:
    def find(name: str) -> tuple[Path, list[str]] | None:
        folder = root if name == CORE else root / "plugins" / name.removeprefix("parallax-").replace("-", "_")
        try:
            project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        except (OSError, ValueError, KeyError):
            return None
        return folder, project.get("dependencies", [])

    return find


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
