"""The documentation, typed: the first pages from their top on machines that have nothing yet, then the guides.

`make nightly` runs this, and nothing else does: it installs everything several times, needs the ports of the pages,
such as 8000 and 9000, and Linux.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.support.guides import GUIDES, STAND_INS
from tests.support.shell import CTRL_C, Shell
from tests.support.snippets import list_snippets, list_typed
from tests.support.walks import WALKS, Step

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]

STEP_S = 900
"""Seconds that a step may take: the kernels are compiled in one."""
CODE = re.compile(r"plx1\w+")
CODES = re.compile(r"plx1[\w.]+|\bCODE(_OF_A_SERVER)?\b")
"""A join code, or what stands for one on a page."""
COMMENT = re.compile(r" {2,}#.*$")
"""What stands behind a command for the reader."""
HINTED = re.compile(r"(?<=`)parallax keys allow [^`]+(?=`)")
"""What a hint says to type on the server's machine."""
NODE = re.compile(r"\[\S+/(\d+)\] ")
"""The name of a node before a line of its log, with its process id."""


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone of what is committed."""
    folder = tmp_path_factory.mktemp("clone") / "parallax"
    run(folder.parent, "git", "clone", "--quiet", str(ROOT), str(folder))
    return folder


@pytest.fixture(scope="session")
def dist(clone: Path) -> Path:
    """Return the folder that ``make wheels`` fills."""
    if not list((clone / "dist").glob("*.whl")):
        run(clone, "make", "wheels")
    return clone / "dist"


@pytest.fixture(scope="session")
def programs(dist: Path) -> Path:
    """Return the folder of programs of an environment in which everything of this project is installed."""
    folder = dist.parent.parent / "installed"
    run(dist, "python3", "-m", "venv", "--upgrade-deps", str(folder))
    torch = ("torch>=2.13,<2.14", "--index-url", "https://download.pytorch.org/whl/cpu")
    run(dist, str(folder / "bin/pip"), "install", "--quiet", *torch)
    run(dist, str(folder / "bin/pip"), "install", "--quiet", *map(str, dist.glob("*.whl")))
    return folder / "bin"


def run(folder: Path, program: str, *words: str) -> None:
    """Run a program in a folder."""
    found = shutil.which(program)
    assert found, program
    subprocess.run([found, *words], cwd=folder, check=True)


class Desk:
    """The machines of a walk, and their terminals."""

    def __init__(self, page: str, folder: Path, clone: Path, stack: ExitStack, programs: str = "") -> None:
        """Open terminals for ``page``, in which the programs of a folder are found, if that is not empty."""
        self._folder, self._clone, self._stack, self._programs = folder, clone, stack, programs
        self._snippets = [each for each in list_snippets() if each.page == page]
        self._shells: dict[str, Shell] = {}
        self._shown: list[str] = []
        """What each step has shown."""

    def take(self, step: Step) -> None:
        """Take a step, and see what it shows."""
        shell, begun = self._shells.get(step.terminal) or self._open(step), time.monotonic()
        if step.command:
            shell.type(self._write(step))
        if step.asks:
            shell.wait(": ", STEP_S)
            shell.type(self._find(re.compile(step.asks)))
        shown = shell.wait(step.until, STEP_S)
        self._shown.append(shown)
        print(f"--- {step.terminal}, {time.monotonic() - begun:.1f} s\n{shown}", flush=True)
        assert step.shows in shown, step

    def _open(self, step: Step) -> Shell:
        machine = self._folder / step.machine
        home = machine / "home"
        if not home.exists():
            home.mkdir(parents=True)
            if (self._clone / "dist").exists():
                shutil.copytree(self._clone / "dist", machine / "dist")
        where = self._clone if step.machine == "clone" else machine
        self._shells[step.terminal] = self._stack.enter_context(Shell(where, home, step.machine, self._programs))
        return self._shells[step.terminal]

    def _write(self, step: Step) -> str:
        """Return what is typed: the command as on the page, with the code and addresses of these machines."""
        if step.command == CTRL_C:
            return CTRL_C
        written = step.command if step.is_prose else next(self._list_written(step))
        if "PID" in written:
            written = written.replace("PID", NODE.findall(self._shells[step.machine].text)[0])
        if "HINTED" in written:
            written = written.replace("HINTED", self._find(HINTED))
        for pattern, stand_in in STAND_INS.items():
            written = re.sub(pattern, stand_in, written)
        return CODES.sub(lambda _: self._find(CODE), written)

    def _list_written(self, step: Step) -> Iterator[str]:
        for snippet in self._snippets:
            for command in list_typed(snippet):
                if command.startswith(step.command):
                    python = "python" if self._programs else ".venv/bin/python"
                    is_code, bare = snippet.language == "python", COMMENT.sub("", command)
                    yield f"{python} - <<'END'\n{command}END" if is_code else bare

    def _find(self, pattern: re.Pattern[str]) -> str:
        """Return what the latest step that has shown any of it has shown first."""
        found = next(filter(None, map(pattern.search, reversed(self._shown))), None)
        assert found, f"no step has shown {pattern.pattern}"
        return found[0]


@pytest.mark.parametrize("page", WALKS)
def test_page_works_as_it_is_typed(page: str, clone: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if not any(step.command == "make wheels" for step in WALKS[page]):
        request.getfixturevalue("dist")
    with ExitStack() as stack:
        desk = Desk(page, tmp_path, clone, stack)
        for step in WALKS[page]:
            desk.take(step)


@pytest.mark.parametrize("page", GUIDES)
def test_guide_works_as_it_is_typed(page: str, clone: Path, programs: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        desk = Desk(page, tmp_path, clone, stack, str(programs))
        for step in GUIDES[page]:
            desk.take(step)
