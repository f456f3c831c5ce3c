"""Runs the tests of a kit and says which fail, so that a kit can be shown to catch what it is for."""

from __future__ import annotations

import gc
import inspect
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def list_tests(kit: type[object]) -> list[str]:
    """Return the names of the tests of a kit."""
    return [name for name, _ in inspect.getmembers(kit, callable) if name.startswith("test_")]


def run_test(kit: type[object], name: str) -> str:
    """Run one test on an instance of its own; return what it found, or nothing if it passed."""
    test = getattr(kit(), name)
    with tempfile.TemporaryDirectory() as folder, _unattended():
        given = {"tmp_path": Path(folder)} if "tmp_path" in inspect.signature(test).parameters else {}
        try:
            test(**given)
        except AssertionError as error:
            return str(error) or "an assertion"
        except Exception as error:  # noqa: BLE001 - a subject with a fault may raise anything
            return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def _unattended() -> Iterator[None]:
    """A subject with a fault leaves things open, and Python would say so in the middle of the next test.

    What was there before is not gone through: everything the session has imported, hundreds of times over.
    """
    gc.freeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        gc.collect()
    gc.unfreeze()


def find_failures(kit: type[object]) -> dict[str, str]:
    """Run every test of a kit; return those that failed, and what they found."""
    found = {name: run_test(kit, name) for name in list_tests(kit)}
    return {name: fault for name, fault in found.items() if fault}
