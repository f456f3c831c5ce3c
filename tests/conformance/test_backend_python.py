"""The kit for the Pythons of backends catches a fault of each sort; `parallax-engines` passes it in its own tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import BackendPython, BackendSpec, Ref
from parallax_core.testing.backend_python import BackendPythonConformance
from tests.conformance.harness import find_failures, run_test

SPEC = BackendSpec(name="abacus", summary="s", probe=Ref[Any]("no:probe"), factory=Ref[Any]("no:factory"))
Answer = Callable[[BackendSpec, bool], BackendPython | None]
OTHERS, RUNS, SPOILT = (
    "test_backend_of_others_is_left_to_them",
    "test_python_of_its_backend_runs_this_parallax",
    "test_python_that_cannot_be_used_is_named_with_the_reason_and_a_remedy",
)


def answer_well(backend: BackendSpec, is_spoilt: bool) -> BackendPython | None:
    if backend.name != SPEC.name:
        return None
    python = BackendPython(path=sys.executable)
    return replace(python, fault="it has beads of wood", remedy="buy beads") if is_spoilt else python


def name_any_backend(_: BackendSpec, is_spoilt: bool) -> BackendPython | None:
    return answer_well(SPEC, is_spoilt)


def name_a_path(backend: BackendSpec, is_spoilt: bool) -> Any:
    found = answer_well(backend, is_spoilt)
    return found and found.path


def name_what_the_shell_finds(backend: BackendSpec, is_spoilt: bool) -> BackendPython | None:
    found = answer_well(backend, is_spoilt)
    return found and replace(found, path="python3")


def name_another_program(backend: BackendSpec, is_spoilt: bool) -> BackendPython | None:
    found = answer_well(backend, is_spoilt)
    return found and replace(found, path="/bin/false")


def complain_always(backend: BackendSpec, _: bool) -> BackendPython | None:
    return answer_well(backend, is_spoilt=True)


def complain_never(backend: BackendSpec, _: bool) -> BackendPython | None:
    return answer_well(backend, is_spoilt=False)


def hide_what_is_spoilt(backend: BackendSpec, is_spoilt: bool) -> BackendPython | None:
    return None if is_spoilt else answer_well(backend, is_spoilt)


def complain_without_a_remedy(backend: BackendSpec, is_spoilt: bool) -> BackendPython | None:
    found = answer_well(backend, is_spoilt)
    return found and replace(found, remedy="")


FAULTS: list[tuple[Answer, str]] = [
    (name_any_backend, OTHERS),
    (name_a_path, RUNS),
    (name_what_the_shell_finds, RUNS),
    (name_another_program, RUNS),
    (complain_always, RUNS),
    (complain_never, SPOILT),
    (hide_what_is_spoilt, SPOILT),
    (complain_without_a_remedy, SPOILT),
]


def make_kit(answer: Answer) -> type[BackendPythonConformance]:
    class Kit(BackendPythonConformance):
        is_spoilt = False

        def find(self, backend: BackendSpec) -> BackendPython | None:
            return answer(backend, self.is_spoilt)

        def make_environment(self, folder: Path) -> BackendSpec:
            return SPEC

        def spoil_environment(self, folder: Path) -> None:
            self.is_spoilt = True

    return Kit


def test_good_answers_pass() -> None:
    assert find_failures(make_kit(answer_well)) == {}


@pytest.mark.parametrize(("answer", "test"), FAULTS, ids=[answer.__name__ for answer, _ in FAULTS])
def test_fault_is_caught(answer: Answer, test: str) -> None:
    assert "The contract says" in run_test(make_kit(answer), test)
