"""Every command of the documentation is run by a test, typed by `make nightly`, or says why neither is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.guides import GUIDES
from tests.support.snippets import PAGES, find_obstacle, list_snippets, list_typed
from tests.support.untyped import UNTYPED
from tests.support.walks import WALKS

ROOT = Path(__file__).parents[2]
SNIPPETS = list(list_snippets())
WALKED = {**WALKS, **GUIDES}


def list_begun(page: str) -> list[str]:
    """Return how the commands of blocks begin that a walk types."""
    return [step.command for step in WALKED.get(page, ()) if step.command and not step.is_prose]


@pytest.mark.parametrize("page", [path.relative_to(ROOT).as_posix() for path in PAGES])
def test_commands_of_a_page_run_or_say_why_not(page: str) -> None:
    commands = [
        (find_obstacle(snippet, command), command)
        for snippet in SNIPPETS
        if snippet.page == page
        for command in list_typed(snippet)
    ]
    begun, reasons = list_begun(page), UNTYPED.get(page, {})
    left = [command for why, command in commands if why not in {None, "elsewhere"}]
    assert [each for each in left if not each.startswith((*begun, *reasons))] == []
    assert [each for each in begun if not any(command.startswith(each) for _, command in commands)] == []
    untyped = [command for command in left if not command.startswith(tuple(begun))]
    assert [each for each in reasons if not any(command.startswith(each) for command in untyped)] == []


def test_reasons_name_what_exists() -> None:
    text = " ".join(reason for reasons in UNTYPED.values() for reason in reasons.values())
    assert [path for path in re.findall(r"(?:tests|docs)/[\w./-]+\.\w+", text) if not (ROOT / path).exists()] == []
    assert UNTYPED.keys() | WALKED.keys() <= {path.relative_to(ROOT).as_posix() for path in PAGES}
