"""Which tests have passed on the sources that they stand on, so that they need not run again.

The tests of a plugin stand on its folder and on whatever they import, directly or not; those of an engine, whose
environment takes 4 GB, on its plugin and on what runs it. `tests/passed.json` has the digest of the sources, the Python
and the instructions of the processor on which each passed last.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import platform
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = Path("tests/passed.json")
"""The digest on which the tests of each plugin, and of each release of an engine, passed last."""
ENGINE = (
    "parallax_core/api/__init__.py",
    "parallax_core/backendkit",
    "parallax_core/contracts",
    "parallax_core/hookspecs.py",
    "parallax_core/node/text_engine.py",
    "parallax_core/node/text_stream.py",
    "parallax_core/node/worker",
    "parallax_core/testing",
    "parallax_core/wire",
    "plugins/engines/parallax_engines",
    "plugins/sampling_torch/parallax_sampling_torch",
    "plugins/stage_tools/parallax_stage_tools",
    "tests/support/real_server.py",
    "tests/support/real_stages.py",
)
"""What the plugins of engines stand on: their contracts and kits, the worker that runs them, and the wire."""
PLUGINS = (
    "backend_*",
    "engines",
    "formats",
    "grammar_tools",
    "models",
    "netcheck",
    "sampling_*",
    "scaffold",
    "simulate",
    "source_*",
    "stage_tools",
    "transport_*",
)
"""The plugins whose tests are left out where they have passed. Others stand on most of core, and always run."""
EVERY = ("conftest.py", "constraints.txt", "tests/data")
"""What all tests stand on without an import."""


def list_suites(root: Path) -> list[str]:
    """Return the plugins whose tests are left out where they have passed."""
    found = (path for kind in PLUGINS for path in root.glob(f"plugins/{kind}/tests"))
    return sorted(str(path.parent.relative_to(root)) for path in found)


def list_sources(root: Path, name: str) -> list[Path]:
    """Return the files that the tests of a plugin, or of an engine's release such as ``vllm-0.32.0``, stand on."""
    if name in list_suites(root):
        return sorted({*_list_imported(root, _list_files(root, [name])), *_list_files(root, [name, *EVERY])})
    plugin = f"plugins/backend_{name.partition('-')[0]}"
    files = _list_files(root, [*ENGINE, plugin])
    return [path for path in files if path.suffix in {".py", ".toml"} and root / plugin / "tests" not in path.parents]


def digest_sources(root: Path, name: str) -> str:
    """Return the digest of the names and contents of the sources, and of what the tests run on."""
    digest = hashlib.sha256("\0".join([name, *_describe_machine(), _read_settings(root)]).encode())
    for path in list_sources(root, name):
        digest.update(f"\0{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def has_passed(root: Path, name: str) -> bool:
    """Return whether the record has these sources."""
    return _read(root).get(name) == digest_sources(root, name)


def record(root: Path, names: Iterable[str]) -> None:
    """Note that tests passed on these sources."""
    noted = _read(root) | {name: digest_sources(root, name) for name in names}
    (root / RECORD).write_text(json.dumps(noted, indent=1, sort_keys=True) + "\n")


def _read(root: Path) -> dict[str, str]:
    path = root / RECORD
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _read_settings(root: Path) -> str:
    path = root / "pyproject.toml"
    known = tomllib.loads(path.read_text()) if path.exists() else {}
    project = known.get("project", {})
    parts = [project.get("dependencies"), known.get("dependency-groups"), known.get("tool", {}).get("pytest")]
    return json.dumps(parts, sort_keys=True)


def _describe_machine() -> list[str]:
    """Return the release of Python, and what tests are skipped for: instructions of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line.split() for line in lines if line.startswith(("flags", "Features"))), [])
    wide = sorted(flag for flag in flags if flag.startswith(("avx", "amx", "asimd", "sve")))
    return [platform.python_version(), platform.system(), platform.machine(), *wide]


def _list_files(root: Path, names: Iterable[str]) -> list[Path]:
    found = [path for name in names for path in (root / name, *sorted((root / name).rglob("*"))) if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts and path.suffix not in {".so", ".pyc"}]


def _list_imported(root: Path, files: Iterable[Path]) -> Iterator[Path]:
    """Yield files and all modules of the repository that they import, or name in a string, and so on."""
    find = _make_finder(root)
    seen = {path for path in files if path.suffix == ".py"}
    todo = list(seen)
    while todo:
        path = todo.pop()
        yield path
        imported = {found for module in _read_modules(path) for found in find(module)} - seen
        seen |= imported
        todo += imported


def _make_finder(root: Path) -> Callable[[str], tuple[Path, ...]]:
    """Return a function that finds a module and its packages, if it is one of the repository."""
    homes = {path.name: path.parent for path in [*root.glob("parallax_*"), *root.glob("*/*/parallax_*")]}

    @cache
    def find(module: str) -> tuple[Path, ...]:
        home, found = homes.get(module.partition(".")[0], root), []
        folder = home
        for part in module.split("."):
            found += [path for path in (folder / f"{part}.py", folder / part / "__init__.py") if path.is_file()]
            folder /= part
        if len(module.split(".")) == 1:
            found += [path for path in [folder / "__main__.py"] if path.is_file()]
        return tuple(found)

    return find


@cache
def _read_modules(path: Path) -> frozenset[str]:
    """Return the names of modules that a file imports, or has in a string: those are imported later, or run."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module)):
                found |= {f"{module}.{alias.name}" for alias in node.names}
            case ast.Constant(value=str(text)) if text.startswith(("parallax_", "tests.")):
                found.add(text.replace(":", ".").split()[0])
            case _:
                pass
    return frozenset(found)


def list_options(names: Iterable[str]) -> list[str]:
    """Return pytest's options that leave out the tests of plugins: folders in ``testpaths`` themselves cannot be."""
    return [f"--ignore-glob={name}/tests/*" for name in names]


def main() -> None:
    """Exit with 0 if the tests of a release passed on these sources, and 1 if not.

    Without a name, print what leaves out the tests of plugins that passed, for pytest.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("release", nargs="?")
    parser.add_argument("--record", action="store_true", help="note instead that they passed")
    asked = parser.parse_args()
    names = [asked.release] if asked.release else list_suites(ROOT)
    if asked.record:
        record(ROOT, names)
        print(f"the tests of {asked.release or 'plugins'} passed: commit {RECORD}")
        return
    passed = [name for name in names if has_passed(ROOT, name)]
    print(*(f"{name} passed on these sources: see {RECORD}" for name in passed), sep="\n", file=sys.stderr)
    if asked.release:
        sys.exit(not passed)
    print(*list_options(passed))


if __name__ == "__main__":
    main()
