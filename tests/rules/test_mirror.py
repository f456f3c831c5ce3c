"""The unit tests mirror core and the cluster: a module is tested in the file of its name, in its package's folder."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE, UNIT = ROOT / "parallax_core", ROOT / "tests/unit"
CLUSTER = ROOT / "plugins/cluster"

SUBJECTS = {
    *(
        "rebalancing/timeline",
        "cli/start",
        "contracts/defaults",
        "cli/units",
    ),
    *("engine/admission", "engine/traffic", "node/failover", "node/pipeline/losses", "node/replicas", "node/roles"),
    *(
        "node/coordinator/leases",
        "node/relay/members",
        "node/routes",
        "pages/random_edits",
        "placement/borders",
        "placement/golden",
        "placement/large_fleets",
        "placement/published",
        "plugins/hooks",
        "server/answers",
    ),
    *(
        "server/cancels",
        "server/contract",
        "server/nested_values",
        "server/ranges",
    ),
    *("server/whole", "testing/reference", "wire/damage", "wire/limits"),
}
"""Test files that concern several modules; their docstrings state their subjects."""


def list_modules() -> set[str]:
    """Return the modules of core and of the cluster, as paths without a suffix."""
    folders = (CORE, CLUSTER / "parallax_cluster")
    return {path.relative_to(each).with_suffix("").as_posix() for each in folders for path in each.rglob("*.py")}


def list_tested() -> set[str]:
    """Return the paths of the modules that the unit tests test, according to their file names."""
    return set(find_files())


def find_files() -> dict[str, Path]:
    """Return the files of tests by the paths of the modules that they test, according to their names."""
    files = {path: folder for folder in (UNIT, CLUSTER / "tests") for path in folder.rglob("test_*.py")}
    return {
        path.relative_to(folder).with_name(path.stem.removeprefix("test_")).as_posix(): path
        for path, folder in files.items()
    }


def test_unit_tests_are_where_their_module_is() -> None:
    assert list_tested() - list_modules() - SUBJECTS == set()


def test_every_subject_is_still_there() -> None:
    assert list_tested() >= SUBJECTS
    assert not SUBJECTS & list_modules()


def test_files_of_several_modules_say_what_they_test() -> None:
    files = find_files()
    found = {name: ast.get_docstring(ast.parse(files[name].read_text(encoding="utf-8"))) for name in SUBJECTS}
    assert {name for name, docstring in found.items() if not docstring} == set()
