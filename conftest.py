"""The rule that nothing is skipped: a run in which a test did not run fails, unless the machine lacks what it needs."""

from __future__ import annotations

import signal
from typing import Any

import pytest

ALLOWED = ("Metal", "CUDA", "this processor lacks")
"""A reason for a skip says one of these: of devices, or of instructions. Expected failures count as skips."""


class SkipRule:
    """Collects what was skipped without leave, and fails the run for it."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look at a test that has run."""
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Look at a module that was collected; it may have skipped itself."""
        self._note(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn success into failure."""
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:  # noqa: ANN401 -- its type is private to pytest
        """Say which."""
        if self.refused:
            terminalreporter.section("skipped, which only a missing device or instruction allows", red=True)
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


def pytest_configure(config: pytest.Config) -> None:
    """Put the rule in force, and let interrupts through to the processes that tests start.

    A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(SkipRule(), "skip-rule")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share the tests, have one of them begin with those that start servers.

    They take longest, wait most, and use fixtures that a process makes once. No process takes a test that another has
    begun.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith("tests/e2e/"))
