"""Chooses and runs the tests that may catch a mutant."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.mutant_places import PLUGINS
from tests.support.mutant_switch import FOLDER

TESTS = ("tests/unit", "tests/conformance", *(f"{plugin}/tests" for plugin in PLUGINS))
LIMIT_S = 600
"""Seconds after which a run counts as passed: that it took so long may be the machine."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
PYTEST = (sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-o", "timeout=60")


def copy_tree(root: Path, folder: Path) -> Path:
    """Return a copy of the tree's commit, made unless it is there."""
    if not folder.exists():
        command = ("git", "worktree", "add", "--detach", str(folder), "HEAD")
        subprocess.run(command, cwd=root, check=True)
    return folder


def record(folder: Path, notes: Path, num_workers: int) -> None:
    """Run all tests in a tree with switches, and keep what these noted."""
    made = notes.with_suffix(".part")
    made.mkdir(parents=True, exist_ok=True)
    spread = ("--numprocesses", str(num_workers), "--dist", "worksteal")
    _run_all(folder, notes.with_suffix(".log"), *spread, **{FOLDER: str(made)})
    made.rename(notes)


def follow(folder: Path, file: Path, plan: Mapping[str, Sequence[str]], found: Path) -> None:
    """Run the tests of a plan, by place, in a tree with switches, and add to ``found`` which failed."""
    file.write_text(json.dumps(plan), encoding="utf-8")
    files = {"MUTANT_PLAN": str(file), "MUTANT_FOUND": str(found)}
    _run_all(folder, file.with_suffix(".log"), "-p", "tests.support.mutant_loop", **files)


def read_found(found: Path) -> dict[str, str]:
    """Return the test that caught the mutant of a place, by place; empty: none did."""
    return dict(map(json.loads, found.read_text(encoding="utf-8").splitlines())) if found.exists() else {}


def note_found(found: Path, place: str, test: str) -> None:
    """Add the test that caught the mutant of a place."""
    with found.open("a", encoding="utf-8") as file:
        file.write(json.dumps([place, test]) + "\n")


class Chooser:
    """Chooses the tests that may catch a fault of a place, the nearest first."""

    def __init__(self, folder: Path, notes: Path, *, takes_files: bool) -> None:
        """Read what switches noted; ``takes_files``: choose all tests of a module too, whatever was noted."""
        self._folder, self._takes_files = folder, takes_files
        self._tests: defaultdict[str, set[str]] = defaultdict(set)
        for path in notes.iterdir():
            for line in path.read_text(encoding="utf-8").splitlines():
                place, _, test = line.partition("\t")
                name, _, phase = test.rpartition(" ")
                # What a fixture shares with tests after the first is noted for the first alone.
                self._tests[place].add(name if phase == "(call)" else name.partition("::")[0])

    def choose(self, file: str, place: str) -> list[str]:
        """Return those of its own module, then the others: by name of the test, or the file where any of it may."""
        own = {path for path in self._list_files() if Path(path).stem.endswith(f"_{Path(file).stem}")}
        tests = self._tests[place] - {""}
        near = {test for test in tests if test.partition("::")[0] in own} | (own if self._takes_files else set())
        return [*sorted(near), *sorted(tests - near)]

    def list_naming(self, file: str) -> list[str]:
        """Return the files of tests that name a module."""
        parts = Path(file).with_suffix("").parts
        module = ".".join(parts[2:] if parts[0] == "plugins" else parts).removesuffix(".__init__")
        name = re.compile(re.escape(module) + r"\b(?!\.)")
        paths = self._list_files()
        return sorted(path for path in paths if name.search((self._folder / path).read_text(encoding="utf-8")))

    def _list_files(self) -> list[str]:
        paths = (path for folder in TESTS for path in (self._folder / folder).rglob("test_*.py"))
        return [path.relative_to(self._folder).as_posix() for path in paths]


def run_tests(folder: Path, tests: Sequence[str]) -> str:
    """Return the first of these tests that fails; empty: none does."""
    if not tests:
        return ""
    run = ("timeout", "-k", "5", str(LIMIT_S), *PYTEST, "-x", *tests)
    done = subprocess.run(run, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False)
    found = FAILED.search(done.stdout)
    return "" if done.returncode in {0, 5, 124} else found[1] if found else tests[0]


def _run_all(folder: Path, log: Path, *options: str, **environment: str) -> None:
    with log.open("w", encoding="utf-8") as file:
        given = _environment(folder) | environment
        subprocess.run([*PYTEST, *TESTS, *options], cwd=folder, env=given, stdout=file, check=False)


def _environment(folder: Path) -> dict[str, str]:
    paths = [folder, *(folder / "plugins").iterdir()]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONPYCACHEPREFIX": str(folder / "build/pycache"),
        "OPENBLAS_NUM_THREADS": "1",
    }
