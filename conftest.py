"""Settings of every run of the tests. It fails for skips without a missing device, and for tests over their bound."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any, ClassVar

import pytest

ALLOWED = ("Metal", "CUDA", "this processor lacks")
"""The devices and instructions that the reason of a skip must mention. Expected failures count as skips."""
TIERS = {"tests/unit/": 15.0, "tests/rules/": 15.0, "": 90.0}
"""The most seconds of processor that a test may take, by the beginning of its path: the first that fits holds.

They are more than twice what the longest takes here, since processors differ."""
SLOW_S = 1.0
"""A test that takes longer is stored by name."""


class RunRule:
    """Fails an otherwise successful run, and lists why."""

    heading: ClassVar[str]

    def __init__(self) -> None:
        self.refused: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run where something was refused."""
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:  # noqa: ANN401 -- its type is private to pytest
        """List what was refused."""
        if self.refused:
            terminalreporter.section(self.heading, red=True)
            for line in self.refused:
                terminalreporter.line(line)


class SkipRule(RunRule):
    """Refuses skips that are not allowed."""

    heading = "skipped without a missing device or instruction"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Check a test that has run."""
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Check a collected module, which may have skipped itself."""
        self._note(report)

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


class TierRule(RunRule):
    """Refuses tests that take more of the processor than their tier may, but those that run nightly.

    The processor's seconds count, in the test's process and its children that ended: on a busy machine they are about
    the same, as those of a clock are not. Fixtures, which tests share, do not count.
    """

    heading = "more seconds of processor than the tier of the test may take"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Count what a test takes, in the process that runs it."""
        begun = _count_processor_s()
        try:
            return (yield)
        finally:
            if not item.get_closest_marker("nightly"):
                item.user_properties.append(("processor_s", round(_count_processor_s() - begun, 2)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Check a test that has run."""
        spent, bound = _read_processor_s(report), find_bound(report.nodeid)
        if spent > bound:
            self.refused.append(f"{report.nodeid}: {spent:g} s, of at most {bound:g} s")


def find_bound(nodeid: str) -> float:
    """Return the most seconds of processor that a test may take."""
    return next(bound for prefix, bound in TIERS.items() if nodeid.startswith(prefix))


def _count_processor_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _read_processor_s(report: pytest.TestReport) -> float:
    spent = dict(report.user_properties).get("processor_s") if report.when == "call" else None
    return spent if isinstance(spent, float) else 0.0


class Durations:
    """Adds to a JSON file what each file of tests took, and its slow tests: seconds with fixtures, and of processor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._took: dict[str, list[float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a part of a test."""
        took = self._took.setdefault(report.nodeid, [0.0, 0.0])
        took[0] += report.duration
        took[1] += _read_processor_s(report)

    def pytest_sessionfinish(self) -> None:
        """Write the file, with one line for each file of tests."""
        known: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}
        files = {path: _sum_up(path, self._took) for path in {nodeid.partition("::")[0] for nodeid in self._took}}
        lines = (f"{json.dumps(path)}: {json.dumps(entry)}" for path, entry in sorted((known | files).items()))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _sum_up(path: str, took: dict[str, list[float]]) -> dict[str, Any]:
    tests = {name: spent for nodeid, spent in took.items() for at, _, name in [nodeid.partition("::")] if at == path}
    sums = [round(sum(column), 1) for column in zip(*tests.values(), strict=True)]
    slow = {name: [round(part, 1) for part in spent] for name, spent in tests.items() if max(spent) >= SLOW_S}
    return {"tests": len(tests), "seconds": sums[0], "processor_s": sums[1], **({"slow": slow} if slow else {})}


class Record:
    """Writes the last nightly run of each file of tests: its commit, seconds, what failed, and what only at first."""

    def __init__(self, path: Path) -> None:
        self._path, self._seconds, self._failed = path, dict[str, float](), set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a part of a test."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Add this run to those of the same commit; files that had no test in it keep what they had."""
        shown = ["git", "show", "--no-patch", "--format=%H %cI", "HEAD"]
        commit, date = subprocess.run(
            shown, cwd=session.config.rootpath, check=True, capture_output=True, text=True
        ).stdout.split()
        record: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}
        for nodeid, seconds in self._seconds.items():
            path, _, name = nodeid.partition("::")
            if record.get(path, {}).get("commit") != commit:
                record[path] = {"commit": commit, "date": date, "failed": [], "flaky": [], "seconds": {}}
            entry = record[path]
            entry["seconds"][name] = round(seconds, 1)
            if nodeid in self._failed:
                entry["failed"] = sorted({*entry["failed"], name})
            elif name in entry["failed"]:
                entry["failed"].remove(name)
                entry["flaky"] = sorted({*entry["flaky"], name})
        self._path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    parser.addoption("--store-durations", type=Path, help="add what each file of tests took to this JSON file")
    parser.addoption("--record", type=Path, help="add the tests of this run to this record of nightly runs")


def pytest_configure(config: pytest.Config) -> None:
    """Register the rules and the profiles of Hypothesis, and restore SIGINT for the processes that tests start.

    A shell starts background jobs with SIGINT ignored, and child processes inherit that. Without `tests` among the
    folders to run, nothing else would load the profiles.
    """
    if config.pluginmanager.hasplugin("hypothesispytest"):
        importlib.import_module("tests.conftest")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(SkipRule(), "skip-rule")
    config.pluginmanager.register(TierRule(), "tier-rule")
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
    """Leave what exists by now, modules and tests, out of garbage collections, many of which run as stages close.

    For good: a server freezes what it has, and a worker that returns memory unfreezes all. Here these would be the
    million objects of the run, which each collection from then on would look at, for half a second.
    """
    gc.collect()
    gc.freeze()
    for name in ("freeze", "unfreeze"):
        setattr(gc, name, lambda: None)
