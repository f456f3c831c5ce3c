"""Settings of every run of the tests; a skip fails it, unless the machine lacks the device or instruction."""

from __future__ import annotations

import gc
import json
import signal
from pathlib import Path
from typing import Any

import pytest

ALLOWED = ("Metal", "CUDA", "this processor lacks")
"""The devices and instructions that the reason of a skip must mention. Expected failures count as skips."""


class SkipRule:
    """Collects the skips that are not allowed, and fails the run for them."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Check a test that has run."""
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Check a collected module, which may have skipped itself."""
        self._note(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail an otherwise successful run with refused skips."""
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:  # noqa: ANN401 -- its type is private to pytest
        """List the refused skips."""
        if self.refused:
            terminalreporter.section("skipped without a missing device or instruction", red=True)
            for line in self.refused:
                terminalreporter.line(line)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped:
            return
        reason = _read_reason(report)
        if not any(device in reason for device in ALLOWED):
            self.refused.append(f"{report.nodeid}: {reason}")


def _read_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail {report.wasxfail}"
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)


class Durations:
    """Adds the seconds of each test, with its fixtures, to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a part of a test."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        known |= {name: round(seconds, 3) for name, seconds in self._seconds.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(known, indent=0, sort_keys=True))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    parser.addoption("--store-durations", type=Path, help="add the seconds of each test to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    """Register the rule, and restore SIGINT for the processes that tests start.

    A shell starts background jobs with SIGINT ignored, and child processes inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(SkipRule(), "skip-rule")
    path: Path | None = config.getoption("store_durations")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(path), "durations")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests that start servers first where several processes share the tests.

    They take longest, wait most, and use fixtures that each process makes once; once begun, no other process can take
    them over.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith("tests/e2e/"))


def pytest_collection_finish() -> None:
    """Leave what exists by now, modules and tests, out of garbage collections, many of which run as stages close."""
    gc.collect()
    gc.freeze()
