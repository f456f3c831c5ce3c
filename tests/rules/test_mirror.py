"""The unit tests mirror core: a module is tested in the file of the same name, in the folder of its package."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE, UNIT = ROOT / "parallax_core", ROOT / "tests/unit"

SUBJECTS = {
    *(
        "cluster/rebalancing/timeline",
        "cli/start",
        "cli/units",
    ),
    *("engine/admission", "engine/traffic", "node/failover", "node/pipeline/losses", "node/replicas", "node/roles"),
    *(
        "node/coordinator/leases",
        "node/relay/members",
        "node/routes",
        "node/whole_model/losses",
        "pages/random_edits",
        "plugins/hooks",
        "server/answers",
    ),
    *(
        "server/cancels",
        "server/contract",
        "server/nested_values",
        "server/ranges",
        "server/tools",
    ),
    *("server/whole", "testing/reference", "wire/damage"),
}
"""Test files that concern several modules; their docstrings state their subjects."""


def list_modules() -> set[str]:
    """Return the modules of core, as paths without a suffix."""
    return {path.relative_to(CORE).with_suffix("").as_posix() for path in CORE.rglob("*.py")}


def list_tested() -> set[str]:
    """Return the paths of the modules that the unit tests test, according to their file names."""
    return {
        path.relative_to(UNIT).with_name(path.stem.removeprefix("test_")).as_posix() for path in UNIT.rglob("test_*.py")
    }


def test_unit_tests_are_where_their_module_is() -> None:
    assert list_tested() - list_modules() - SUBJECTS == set()


def test_every_subject_is_still_there() -> None:
    assert list_tested() >= SUBJECTS
    assert not SUBJECTS & list_modules()


def test_files_of_several_modules_say_what_they_test() -> None:
    files = {name: (UNIT / name).with_name(f"test_{Path(name).name}.py") for name in SUBJECTS}
    found = {name: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for name, path in files.items()}
    assert {name for name, docstring in found.items() if not docstring} == set()
