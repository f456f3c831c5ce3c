"""The tests that only ``make nightly`` runs have run since what they test has changed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.rules.test_skips import run_pytest

ROOT = Path(__file__).parents[2]
RECORD: dict[str, Any] = json.loads((ROOT / "tests/nightly.json").read_text())
MARK = "mark.nightly"
MARKED = {
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/*/tests/**/test_*.py")]
    if MARK in path.read_text() and path != Path(__file__)
}
FILES = sorted(MARKED | {file for file in RECORD if (ROOT / file).exists()})
"""The files that have tests which run nightly only; a helper may have marked some of them."""
PATIENCE = 300
"""Commits that may follow a change before the tests of what it changed have run."""


def git(root: Path, *words: str) -> list[str]:
    command = ["git", *words]
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    return done.stdout.splitlines()


def list_since(root: Path, record: dict[str, Any], *paths: str) -> list[str]:
    """Return the commits since a record that changed paths, latest first; by its date if history was rewritten."""
    is_known = record["commit"] in git(root, "rev-list", "HEAD")
    since = [f"{record['commit']}..HEAD"] if is_known else [f"--since={record['date']}", "HEAD"]
    return git(root, "log", "--format=%H", *since, "--", *paths)


def find_stale(root: Path, record: dict[str, Any], subjects: list[str], patience: int) -> list[str]:
    """Return the commits that changed subjects since a record, and that at least ``patience`` commits have followed."""
    late = set(list_since(root, record)[patience:])
    return [commit for commit in list_since(root, record, *subjects) if commit in late]


def list_subjects(file: str) -> list[str]:
    """Return the folders that a file tests: a plugin's own, or core and what runs with it."""
    return ["/".join(file.split("/")[:2])] if file.startswith("plugins/") else ["parallax_core", "plugins"]


@pytest.mark.parametrize("file", FILES)
def test_nightly_tests_have_run_since_their_subject_changed(file: str) -> None:
    """One that has never run is as old as the oldest that has."""
    entry = RECORD.get(file) or min(RECORD.values(), key=lambda entry: str(entry["date"]))
    stale = find_stale(ROOT, entry, [file, *list_subjects(file)], PATIENCE)
    assert not stale, f"run `make nightly` and commit its record: since the last, {stale[-1]} changed what {file} tests"


def test_last_nightly_run_was_green() -> None:
    assert [(file, entry["failed"]) for file, entry in RECORD.items() if entry["failed"]] == []


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Return a repository with a commit that is recorded, one that changes the subject, and one that does not."""
    git(tmp_path, "init", "--quiet")
    for number, path in enumerate(["other", "subject", "other"]):
        (tmp_path / path).write_text(str(number))
        git(tmp_path, "add", ".")
        who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
        git(tmp_path, *who, "commit", "--quiet", "--message", path)
    return tmp_path


@pytest.mark.parametrize(("patience", "num_stale"), [(0, 1), (1, 1), (2, 0)])
def test_change_is_stale_when_enough_commits_have_followed_it(history: Path, patience: int, num_stale: int) -> None:
    [recorded] = git(history, "rev-parse", "HEAD~2")
    record = {"commit": recorded, "date": "2000-01-01T00:00:00Z"}
    assert len(find_stale(history, record, ["subject"], patience)) == num_stale
    assert find_stale(history, record, ["nothing"], 0) == []


def test_record_of_a_rewritten_history_counts_by_its_date(history: Path) -> None:
    record = {"commit": "0" * 40, "date": "2000-01-01T00:00:00Z"}
    assert len(find_stale(history, record, ["subject"], 1)) == 1
    assert find_stale(history, {**record, "date": "2099-01-01T00:00:00Z"}, ["subject"], 0) == []


SOURCE = """
import pathlib, pytest

@pytest.mark.nightly
def test_flaky():
    tries = pathlib.Path("tries")
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    assert tries.read_text() == "xx"

def test_quick():
    pass
"""


def test_nightly_run_is_recorded_with_what_failed_at_first(history: Path) -> None:
    def run(*options: str) -> int:
        return run_pytest(history, SOURCE, *options).returncode

    path = history / "record.json"
    assert run() == 0, "what is nightly does not run"
    assert not (history / "tries").exists()
    path.write_text('{"test_other.py": {"commit": "0"}}')
    name, record = "test_flaky", ("-m", "nightly", "--record", str(path))
    assert run(*record) == 1
    assert json.loads(path.read_text())["test_case.py"]["failed"] == [name]
    assert run(*record) == 0
    found = json.loads(path.read_text())
    assert found["test_other.py"] == {"commit": "0"}, "it had no part in this run"
    entry = found["test_case.py"]
    assert (entry["failed"], entry["flaky"], list(entry["seconds"])) == ([], [name], [name])
    assert [entry["commit"]] == git(history, "rev-parse", "HEAD")
