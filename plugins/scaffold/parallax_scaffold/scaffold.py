"""Writes packages for new plugins from the templates in ``templates``.

A template is a file below ``templates/KIND`` or ``templates/common`` whose name ends in ``.j2``; the folder ``package``
in its path stands for the package of the plugin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment, StrictUndefined

from parallax_core.api import PLUGIN_API, ParallaxError, read_object
from parallax_core.api.cli import PluginHost, UsageError, normalize

KINDS = {
    "backend": "a way to run the layers of a model",
    "transport": "a way for nodes to reach each other",
    "model": "a family of models: its shapes, and where its tensors belong",
    "policy": "a decision: when a step begins",
    "source": "a place models come from",
    "parser": "a parser of reasoning and tool calls in a model's text",
}
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MOST_LETTERS = 40
SUFFIX = ".j2"


@dataclass(frozen=True, slots=True)
class Like:
    """A family of models that a new one begins as."""

    name: str
    adapter: str
    """Where its adapter is: ``module:name``."""
    architecture: str
    """That of the new family, in config.json."""
    config: str
    """The text of the new family's config.json."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """The names of a new plugin's package."""

    kind: str
    name: str
    """The name that users write, normalized like the name of a distribution (PEP 503)."""
    like: Like | None = None
    """What a family of models begins as; None: as Llama."""

    @property
    def distribution(self) -> str:
        """The name of the distribution."""
        return f"parallax-{self.kind}-{self.name}"

    @property
    def package(self) -> str:
        """The name of the Python package."""
        return self.distribution.replace("-", "_")

    @property
    def stem(self) -> str:
        """The first part of the names of classes."""
        return "".join(part.capitalize() for part in self.name.split("-"))


def read_kind(kind: str) -> str:
    """Return ``kind`` if there is a template for it.

    Raises:
        UsageError: if there is none.
    """
    if kind not in KINDS:
        message = f"there is no template for {kind!r}"
        raise UsageError(message, "choose one of: " + "; ".join(f"{name} ({what})" for name, what in KINDS.items()))
    return kind


def make_project(kind: str, name: str) -> Project:
    """Return the project of a new plugin.

    Raises:
        UsageError: if the name is invalid, or an installed distribution has it.
    """
    spelling = normalize(name)
    if len(spelling) > MOST_LETTERS or not NAME.fullmatch(spelling):
        message = f"{name!r} is not a valid name for a plugin"
        raise UsageError(
            message, f"use up to {MOST_LETTERS} letters and digits of ASCII, with hyphens between, a letter first"
        )
    project = Project(kind=kind, name=spelling)
    try:
        found = version(project.distribution)
    except PackageNotFoundError:
        return project
    message = f"{project.distribution} {found} is installed already"
    raise UsageError(message, "choose another name: two distributions cannot share one")


def read_like(host: PluginHost, family: str, path: Path | None) -> Like:
    """Return the family that a new one, of the config.json at ``path``, begins as.

    Raises:
        UsageError: if no plugin offers the family, or there is no config.json with an architecture.
    """
    specs = {offer.spec.name: offer.spec for offer in host.models().offers}
    if family not in specs:
        raise UsageError(f"no installed plugin offers the family {family!r}", f"--like is one of: {', '.join(specs)}")
    if path is None or not path.is_file():
        raise UsageError(f"there is no file {path or 'for --config'}", "give the config.json of a model, with --config")
    named = read_object(path).get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str) or not named[0].isidentifier():
        raise UsageError(f"'architectures' in {path} is {named!r}", "give the config.json of a model, with --config")
    return Like(family, specs[family].adapter.target, named[0], path.read_text(encoding="utf-8"))


def write_project(project: Project, folder: Path) -> Path:
    """Write the files of a project into a new folder below ``folder``, and return that folder.

    Raises:
        ParallaxError: if it exists already.
    """
    place = folder / project.distribution
    try:
        place.mkdir(parents=True)
    except FileExistsError as error:
        message = f"{place} exists already, and nothing in it was changed"
        raise ParallaxError(message, "choose another name, or another folder with --folder") from error
    for path, text in render_project(project):
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return place


def render_project(project: Project) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield the files of a project: their paths within its folder, and their contents."""
    # The files are Python and TOML, which HTML escapes would break.
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701
    facts = describe_project(project)
    if project.like:
        yield PurePosixPath("tests/config.json"), project.like.config
    for root in ("common", "like" if project.like else project.kind):
        for path, template in _walk_templates(files("parallax_scaffold") / "templates" / root, PurePosixPath()):
            parts = (project.package if part == "package" else part for part in path.parts)
            yield PurePosixPath(*parts), environment.from_string(template).render(facts)


def describe_project(project: Project) -> dict[str, Any]:
    """Return the variables of the templates."""
    core = version("parallax-core").split(".")
    return {
        "kind": project.kind,
        "name": project.name,
        "distribution": project.distribution,
        "package": project.package,
        "stem": project.stem,
        "what": KINDS[project.kind],
        "core": f"parallax-core>={core[0]}.{core[1]},<{core[0]}.{int(core[1]) + 1}",
        "extra": f"parallax-core[testing]>={core[0]}.{core[1]},<{core[0]}.{int(core[1]) + 1}",
        "api": PLUGIN_API,
        "like": project.like,
    }


def _walk_templates(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _walk_templates(entry, path / entry.name)
        elif entry.name.endswith(SUFFIX):
            yield path / entry.name.removesuffix(SUFFIX), entry.read_text(encoding="utf-8")
