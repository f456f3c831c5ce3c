"""Runs the tests of a kit and returns the failures, to show that the kit catches faults."""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from gc import collect, freeze  # by name, since a run of the tests takes the effect from `gc.freeze`
from pathlib import Path


def list_tests(kit: type[object]) -> list[str]:
    """Return the names of the tests of a kit."""
    return [name for name, _ in inspect.getmembers(kit, callable) if name.startswith("test_")]


def run_test(kit: type[object], name: str) -> str:
    """Run one test on a new instance of the kit; return its failure, empty if it passed."""
    test = getattr(kit(), name)
    with tempfile.TemporaryDirectory() as folder, _without_warnings():
        given = {"tmp_path": Path(folder)} if "tmp_path" in inspect.signature(test).parameters else {}
        try:
            test(**given)
        except AssertionError as error:
            return str(error) or "an assertion"
        except Exception as error:  # noqa: BLE001 - a faulty subject may raise any error
            return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress the resource warnings of a faulty subject, which Python would otherwise raise during the next test.

    Existing objects are frozen, so that garbage collection does not scan them hundreds of times.
    """
    freeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        collect()


def find_failures(kit: type[object]) -> dict[str, str]:
    """Run every test of a kit; return the failures by test name."""
    found = {name: run_test(kit, name) for name in list_tests(kit)}
    return {name: fault for name, fault in found.items() if fault}
