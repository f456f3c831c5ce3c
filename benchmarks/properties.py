"""Every property of the unit tests, held to many more examples than there is time for in every run.

    python -m benchmarks.properties --out benchmarks/results/properties.json

The tests are those that hypothesis marks, under its profile `long`, whose examples are other ones each time; those of
the HTTP surface try ten times as many as in every run. What fails is printed with the example that shows it.
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


class Record:
    """A pytest plugin that notes how long each property took, and whether it holds."""

    def __init__(self) -> None:
        self.examples = 0
        self.properties: list[dict[str, Any]] = []

    def pytest_collection_finish(self) -> None:
        """Note the number of examples: the profile is in force by now."""
        self.examples = settings().max_examples

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note one test."""
        if report.when == "call":
            found = {"test": report.nodeid, "seconds": round(report.duration, 1), "outcome": report.outcome}
            self.properties.append(found)


def main() -> None:
    """Run the properties, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=None)
    out: Path | None = parser.parse_args().out
    record = Record()
    status = pytest.main([*CHOSEN, str(ROOT / "tests/unit")], plugins=[record])
    report = {
        **describe_run(["benchmarks.properties"], ["hypothesis", "pytest"]),
        "examples": record.examples,
        "properties": record.properties,
    }
    if status == pytest.ExitCode.OK:
        write_report(out, report)
    raise SystemExit(status)


if __name__ == "__main__":
    main()
