"""Settings of every run of the tests; a skip fails it, unless the machine lacks the device or instruction."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
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


class Record:
    """Writes which tests a nightly run ran on which commit: their seconds, which failed, and which only at first."""

    def __init__(self, path: Path) -> None:
        self._path, self._seconds, self._failed = path, dict[str, float](), set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a part of a test."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Add this run to those of the same commit."""
        shown = ["git", "show", "--no-patch", "--format=%H %cI", "HEAD"]
        commit, date = subprocess.run(
            shown, cwd=session.config.rootpath, check=True, capture_output=True, text=True
        ).stdout.split()
        record: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}
        if record.get("commit") != commit:
            record = {"commit": commit, "date": date, "failed": [], "flaky": [], "seconds": {}}
        passed = self._seconds.keys() - self._failed
        record["flaky"] = sorted({*record["flaky"], *passed.intersection(record["failed"])})
        record["failed"] = sorted(self._failed.union(record["failed"]) - passed)
        record["seconds"] |= {name: round(seconds, 1) for name, seconds in self._seconds.items()}
        self._path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    parser.addoption("--store-durations", type=Path, help="add the seconds of each test to this JSON file")
    parser.addoption("--record", type=Path, help="add the tests of this run to this record of nightly runs")


def pytest_configure(config: pytest.Config) -> None:
    """Register the rule, and restore SIGINT for the processes that tests start.

    A shell starts background jobs with SIGINT ignored, and child processes inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(SkipRule(), "skip-rule")
    for option, plugin in (("store_durations", Durations), ("record", Record)):
        path: Path | None = config.getoption(option)
        if path is not None and not hasattr(config, "workerinput"):
            config.pluginmanager.register(plugin(path), option)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave nightly tests out unless `-m` names them; where processes share tests, run those that start servers first.

    They take longest, wait most, and use fixtures that each process makes once; once begun, no other process can take
    them over.
    """
    if "nightly" not in config.option.markexpr:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith("tests/e2e/"))


def pytest_collection_finish() -> None:
    """Leave what exists by now, modules and tests, out of garbage collections, many of which run as stages close."""
    gc.collect()
    gc.freeze()
