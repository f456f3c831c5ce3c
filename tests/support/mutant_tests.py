"""Chooses and runs the tests that may catch a mutant."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support import passed
from tests.support.mutant_places import PLUGINS
from tests.support.mutant_switch import FOLDER

ALWAYS = sorted(
    {f"plugins/{path.parent.name}" for path in passed.ROOT.glob("plugins/*/tests")}
    - {*PLUGINS, *passed.list_suites(passed.ROOT)}
)
"""The plugins, beside those that places are in, whose tests `make test` always runs: they stand on most of core."""
TESTS = (
    "tests/unit",
    "tests/conformance",
    *(f"{plugin}/tests" for plugin in (*PLUGINS, *ALWAYS)),
    "tests/rules",
    "tests/e2e",
)
FAR = ("tests/rules/", "tests/e2e/")
"""Tests that come last; most of them start servers."""
DESCRIBING = ("tests/rules/test_contracts.py", "tests/rules/test_plugin_api.py")
"""Tests that hold what plugins may use to what is written of it."""
LIMIT_S = 200
"""Seconds after which a run counts as passed: that it took so long may be the machine."""
UNTIL = "MUTANT_UNTIL"
"""The variable of the environment with the time, in seconds of the epoch, after which nothing more begins."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
PYTEST = (sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-o", "timeout=60")


def copy_tree(root: Path, folder: Path) -> Path:
    """Return a copy of the tree's commit, made unless it is there."""
    if not folder.exists():
        command = ("git", "worktree", "add", "--quiet", "--detach", str(folder), "HEAD")
        subprocess.run(command, cwd=root, check=True)
        home = root / "build/test-home"  # with the model that servers have
        home.mkdir(parents=True, exist_ok=True)
        (folder / "build").mkdir(exist_ok=True)
        (folder / "build/test-home").symlink_to(home)
    return folder


def is_late() -> bool:
    """Return whether nothing more is to begin."""
    return time.time() > float(os.environ.get(UNTIL, "inf"))


def record(folder: Path, notes: Path, num_workers: int) -> bool:
    """Run the tests in a tree with switches, folder by folder, and keep what these noted; return whether all have run.

    A folder whose tests have run has a log.
    """
    notes.mkdir(parents=True, exist_ok=True)
    for tests in _list_folders(folder):
        log = notes.parent / "logs" / (tests.replace("/", "-") + ".log")
        if log.exists():
            continue
        if is_late():
            return False
        log.parent.mkdir(exist_ok=True)
        part = log.with_suffix(".part")
        spread = ("--numprocesses", str(num_workers), "--dist", "worksteal", "--timeout", "120")
        _run_all(folder, [tests], part, *spread, **{FOLDER: str(notes)})
        part.rename(log)
    return True


def _list_folders(folder: Path) -> list[str]:
    """Return the folders of tests, the large one by its parts."""
    parts = [path.parent for path in sorted((folder / TESTS[0]).glob("*/test_*.py"))]
    deeper = [path.parent.parent for path in sorted((folder / TESTS[0]).glob("*/*/test_*.py"))]
    return [*sorted({path.relative_to(folder).as_posix() for path in (*parts, *deeper)}), *TESTS[1:]]


def list_failing(logs: Path) -> set[str]:
    """Return the tests that failed with no mutant on: most say how the text of a module reads."""
    return {test for log in logs.glob("*.log") for test in FAILED.findall(log.read_text(encoding="utf-8"))}


def follow(folder: Path, plan: Mapping[str, Sequence[str]], found: Path, num_workers: int) -> None:
    """Run the tests of a plan, by place, in a tree with switches, and add to ``found`` which failed."""
    with ThreadPoolExecutor(num_workers) as pool:
        for number in range(num_workers):
            file = found.with_name(f"plan-{number}.json")
            file.write_text(json.dumps(dict(list(plan.items())[number::num_workers])), encoding="utf-8")
            files = {"MUTANT_PLAN": str(file), "MUTANT_FOUND": str(found)}
            loop = ("-p", "tests.support.mutant_loop")
            pool.submit(_run_all, folder, TESTS, file.with_suffix(".log"), *loop, **files)


def read_found(found: Path) -> dict[str, str]:
    """Return the test that caught the mutant of a place, by place; empty: none did."""
    return dict(map(json.loads, found.read_text(encoding="utf-8").splitlines())) if found.exists() else {}


def note_found(found: Path, place: str, test: str) -> None:
    """Add the test that caught the mutant of a place."""
    with found.open("a", encoding="utf-8") as file:
        file.write(json.dumps([place, test]) + "\n")


class Chooser:
    """Chooses the tests that may catch a fault of a place, the nearest first."""

    def __init__(self, folder: Path, notes: Path, limit_s: float, *, takes_files: bool) -> None:
        """Read what switches noted.

        Args:
            folder: the tree with switches.
            notes: the folder of what they noted.
            limit_s: the seconds that the tests of other modules may take together.
            takes_files: choose all tests of a module too, whatever was noted.
        """
        self._folder, self._limit_s, self._takes_files = folder, limit_s, takes_files
        self._failing = list_failing(notes.parent / "logs")
        durations = json.loads((folder / "tests/durations.json").read_text(encoding="utf-8"))
        self._seconds = {path: entry["seconds"] / entry["tests"] for path, entry in durations.items()}
        self._totals: dict[str, float] = {path: entry["seconds"] for path, entry in durations.items()}
        self._tests: defaultdict[str, set[str]] = defaultdict(set)
        for path in notes.iterdir():
            for line in path.read_text(encoding="utf-8").splitlines():
                place, _, test = line.partition("\t")
                name, _, phase = test.rpartition(" ")
                # What a fixture shares with tests after the first is noted for the first alone.
                self._tests[place].add(name if phase == "(call)" else name.partition("::")[0])

    def choose(self, file: str, place: str) -> list[str]:
        """Return those of its module, its package, and others: by name of the test, or the file where any may."""
        paths = [path for path in self._list_files() if not path.startswith(FAR)]
        own = {path for path in paths if Path(path).stem.endswith(f"_{Path(file).stem}")}
        tests = self._tests[place] - {""} - self._failing
        near = {test for test in tests if test.partition("::")[0] in own} | (own if self._takes_files else set())
        beside = {test for test in tests - near if Path(test.partition("::")[0]).parent.name == Path(file).parent.name}
        return [*sorted(near), *self._take_short(beside), *self._take_short(tests - near - beside)]

    def _take_short(self, tests: Collection[str]) -> list[str]:
        """Return the shortest of these tests, as many as there is time for; a file counts as one of its tests."""
        timed = sorted((test.startswith(FAR), self._seconds.get(test.partition("::")[0], 0.0), test) for test in tests)
        sums = itertools.accumulate(seconds for _, seconds, _ in timed)
        return [test for total, (_, _, test) in zip(sums, timed, strict=True) if total <= self._limit_s]

    def list_importing(self, file: str) -> list[str]:
        """Return the files of tests for what runs as a module is imported: those that name it, then the short ones."""
        parts = Path(file).with_suffix("").parts
        module = ".".join(parts[2:] if parts[0] == "plugins" else parts).removesuffix(".__init__")
        name = re.compile(re.escape(module) + r"\b(?!\.)")
        paths = self._list_files()
        naming = sorted(path for path in paths if name.search((self._folder / path).read_text(encoding="utf-8")))
        others = sorted({path for path in paths if not path.startswith(FAR)} - {*naming}, key=self._find_seconds)
        sums = itertools.accumulate(map(self._find_seconds, others))
        short = [path for path, total in zip(others, sums, strict=True) if total <= self._limit_s / 2]
        return [*naming, *(path for path in DESCRIBING if path not in naming), *short]

    def _find_seconds(self, path: str) -> float:
        return self._totals.get(path, 0.0)

    def _list_files(self) -> list[str]:
        paths = (path for folder in TESTS for path in (self._folder / folder).rglob("test_*.py"))
        return [path.relative_to(self._folder).as_posix() for path in paths]


def run_tests(folder: Path, tests: Sequence[str], leave: Sequence[str] = ()) -> str:
    """Return the first of these tests, but those to leave, that fails; empty: none does."""
    if not tests:
        return ""
    run = ("timeout", "-k", "5", str(LIMIT_S), *PYTEST, "-x", *tests, *(f"--deselect={each}" for each in leave))
    done = subprocess.run(run, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False)
    found = FAILED.search(done.stdout)
    return "" if done.returncode in {0, 5, 124} else found[1] if found else tests[0]


def _run_all(folder: Path, tests: Sequence[str], log: Path, *options: str, **environment: str) -> None:
    with log.open("w", encoding="utf-8") as file:
        given = _environment(folder) | environment
        subprocess.run([*PYTEST, *tests, *options], cwd=folder, env=given, stdout=file, check=False)


def _environment(folder: Path) -> dict[str, str]:
    paths = [folder, *(folder / "plugins").iterdir()]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONPYCACHEPREFIX": str(folder / "build/pycache"),
        "OPENBLAS_NUM_THREADS": "1",
    }
