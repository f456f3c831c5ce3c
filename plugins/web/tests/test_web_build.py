"""The page that git has is the one that its sources make, and its words are there in each language."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from parallax_web.plugin import FOLDER

SOURCES = Path(__file__).parents[1] / "frontend"
WORD = re.compile(r'^  "([\w.]+)":', re.MULTILINE)
MOST_FIRST, MOST_ALL = 150_000, 300_000
"""The most bytes of scripts, compressed: of those that are loaded first, and of all."""


def test_scripts_are_small() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in FOLDER.glob("*.js")}
    assert sizes["page.js"] <= MOST_FIRST
    assert sum(sizes.values()) <= MOST_ALL


def test_languages_have_the_same_words() -> None:
    words = {path.stem: WORD.findall(path.read_text("utf-8")) for path in SOURCES.glob("src/languages/*.ts")}
    assert len(words) >= 2
    assert all(found == words["en"] for found in words.values())
    assert len(set(words["en"])) == len(words["en"]) > 50


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_page_is_built_from_its_sources(tmp_path: Path) -> None:
    shutil.copytree(SOURCES, tmp_path / "frontend", ignore=shutil.ignore_patterns("node_modules"))
    (tmp_path / "parallax_web").mkdir()
    environment = {**os.environ, "CI": "true"}
    for command in (["npm", "ci"], ["npm", "run", "check"], ["npm", "run", "build"]):
        subprocess.run(command, cwd=tmp_path / "frontend", check=True, env=environment)
    built = {path.name: path.read_bytes() for path in (tmp_path / "parallax_web" / "page").iterdir()}
    assert built == {path.name: path.read_bytes() for path in FOLDER.iterdir()}
