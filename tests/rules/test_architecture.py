"""The architecture page is generated from the code, and names only existing modules."""

from __future__ import annotations

import re

from tests.rules.architecturepage import CORE, PAGE, list_packages, read_layers, read_purpose, write_page

SENTENCE = re.compile(r"^[A-Z].*[.]$")


def test_tables_of_the_page_are_those_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "run: python -m tests.rules.architecturepage"


def test_modules_of_the_page_are_there() -> None:
    named = set(re.findall(r"(?<![\w/])((?:\w+/)+\w+\.py)", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 25
    assert {name for name in named if not any((root / name).is_file() for root in (CORE, CORE.parent))} == set()


def test_every_package_says_what_belongs_there() -> None:
    packages = [path for names in read_layers() for name in names if name != "__main__" for path in list_packages(name)]
    assert {path.name: read_purpose(path) for path in packages if not SENTENCE.match(read_purpose(path))} == {}
