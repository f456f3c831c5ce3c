"""Switches one mutant on, and notes which tests run a place; `tests.support.mutants` puts the calls there."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "MUTANT_NOTES"
"""The variable of the environment with the folder of notes."""
ON = "MUTANT_ON"
"""The variable of the environment with the place whose mutant is on, in processes that tests start, too."""
on = os.environ.get(ON, "")
"""The place whose mutant is on in this process."""
_noted = set[tuple[str, str]]()


def is_on(place: str) -> bool:
    """Return whether the mutant of a place is on; note the test that runs now, or that started this process."""
    if FOLDER in os.environ and (found := (place, os.environ.get("PYTEST_CURRENT_TEST", ""))) not in _noted:
        _noted.add(found)
        with Path(os.environ[FOLDER], str(os.getpid())).open("a", encoding="utf-8") as file:
            file.write("\t".join(found) + "\n")
    return place == on
