"""Checks every property of the unit tests with many more examples than an ordinary test run has time for.

    python -m benchmarks.properties --out benchmarks/results/properties.json

It runs the tests marked `hypothesis` with the profile `long`, whose examples differ in each run; tests of the HTTP
surface try ten times as many as usual. A failure is printed with the example that shows it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from benchmarks.record import describe_run, write_report

ROOT = Path(__file__).parents[1]
CHOSEN = ["-m", "hypothesis", "--hypothesis-profile=long", "--timeout=3600", "-p", "no:cacheprovider", "-q"]


class PropertyLog:
    """A pytest plugin that records the duration and outcome of each property."""

    def __init__(self) -> None:
        self.examples = 0
        self.properties: list[dict[str, Any]] = []

    def pytest_collection_finish(self) -> None:
        """Record the number of examples; the profile is loaded by now."""
        self.examples = settings().max_examples

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record one test."""
        if report.when == "call":
            found = {"test": report.nodeid, "seconds": round(report.duration, 1), "outcome": report.outcome}
            self.properties.append(found)


def main() -> None:
    """Run the properties, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=None)
    out: Path | None = parser.parse_args().out
    log = PropertyLog()
    status = pytest.main([*CHOSEN, str(ROOT / "tests/unit")], plugins=[log])
    report = {
        **describe_run(["benchmarks.properties"], ["hypothesis", "pytest"]),
        "examples": log.examples,
        "properties": log.properties,
    }
    if status == pytest.ExitCode.OK:
        write_report(out, report)
    raise SystemExit(status)


if __name__ == "__main__":
    main()
