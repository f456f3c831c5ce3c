"""The tutorial does what it says: its blocks are run as a reader runs them, and each shows what it promises.

A block ``sh`` is run in the folder where the one before ended; the lines of a block ``text`` are in what it printed; a
block ``diff`` is a change the reader makes by hand.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = ROOT / "docs/tutorials/write-a-backend.md"
FAMILY = ROOT / "docs/tutorials/add-a-family.md"
INSTALL = "pip install -e '.[test]'"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SET_UP = """CLONE=~/parallax
python3 -m venv .venv
. .venv/bin/activate
pip install --quiet "$CLONE"
"""
"""The one block that is not run, since it fetches what core needs: its wheel has been installed in this way already."""


def read_blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each block."""
    for match in BLOCK.finditer(page):
        yield match[1], match[2]


class Reader:
    """Somebody who follows the tutorial."""

    def __init__(self, folder: Path, scripts: Path, **settings: str) -> None:
        self.folder = folder
        self.printed = ""
        self.code = 0
        self._note = folder / ".where"
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("PARALLAX_", "PYTHON"))}
        self._settings = {
            **bare,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PARALLAX_HOME": str(folder / ".home"),
            "PYTHONDONTWRITEBYTECODE": "1",  # a file that changes twice in a second is read again
            **settings,
        }

    def run(self, block: str) -> None:
        """Run commands, and stay in the folder where they end."""
        script = f"trap 'pwd > {shlex.quote(str(self._note))}' EXIT\nset -e\n{block}"
        ran = subprocess.run(
            ["/bin/bash", "-c", script],
            cwd=self.folder,
            env=self._settings,
            capture_output=True,
            text=True,
            check=False,
        )
        self.printed, self.code = ran.stdout + ran.stderr, ran.returncode
        self.folder = Path(self._note.read_text().strip())

    def change(self, block: str) -> None:
        """Make the change of a diff: its first line names the file, the others are taken out or put in."""
        head, *lines = block.splitlines()
        path = self.folder / head.removeprefix("--- ")
        old, new = ("".join(f"{line[1:]}\n" for line in lines if line[0] == sign) for sign in "-+")
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{path} holds {text.count(old)} times:\n{old}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def look(self, block: str) -> None:
        """See that what was promised was printed; commands end well unless a failure is promised."""
        printed = " ".join(self.printed.split())  # columns are as wide as what else is installed
        missing = [line for line in block.splitlines() if " ".join(line.split()) not in printed]
        assert not missing, self.printed
        assert (self.code != 0) == ("fail" in block.lower()), self.printed


@pytest.mark.nightly
def test_tutorial_does_what_it_says(author_bin: Path, tmp_path: Path) -> None:
    blocks = list(read_blocks(PAGE.read_text(encoding="utf-8")))
    assert blocks.pop(0) == ("sh", SET_UP)
    follow(Reader(tmp_path, author_bin), blocks)


@pytest.mark.nightly
def test_tutorial_on_families_does_what_it_says(tmp_path: Path) -> None:
    """Its package is installed beside the environment, and not into it."""
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    apart = f"pip install -q --no-deps --no-build-isolation --target {site} ."
    blocks = [(kind, block.replace(INSTALL, apart)) for kind, block in read_blocks(FAMILY.read_text(encoding="utf-8"))]
    assert sum(apart in block for _, block in blocks) == 1
    found = os.pathsep.join([str(work / "parallax-model-arcee"), str(site)])  # its sources first, as in `pip -e`
    follow(Reader(work, Path(sys.executable).parent, PYTHONPATH=found), blocks)


def follow(reader: Reader, blocks: Sequence[tuple[str, str]]) -> None:
    """Do what the blocks of a page say."""
    for index, (language, block) in enumerate(blocks, 1):
        match language:
            case "sh":
                reader.run(block)
                is_shown = index < len(blocks) and blocks[index][0] == "text"
                assert is_shown or reader.code == 0, reader.printed
            case "diff":
                reader.change(block)
            case "text":
                reader.look(block)
            case _:
                pytest.fail(f"the tutorial has a block in {language}")
    assert {language for language, _ in blocks} == {"sh", "diff", "text"}


def test_tutorial_names_every_file_of_the_package(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    templates = ROOT / "plugins/scaffold/parallax_scaffold/templates"
    sources = [*templates.glob("backend/package/*.j2"), *templates.glob("common/*.toml.j2")]
    assert [path.name for path in sources if path.name.removesuffix(".j2") not in page] == []
