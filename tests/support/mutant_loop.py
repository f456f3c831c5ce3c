"""A plugin of pytest that runs chosen tests with one mutant after another on, each in a fork of the process.

All tests are collected once, which would otherwise take most of the time. ``MUTANT_PLAN`` names a JSON file with the
tests, or files of tests, for each place; `PLACE: TEST` is added to the file named in ``MUTANT_FOUND`` for each: the
test that failed, or that was running when the process ended or hung.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support import mutant_switch
from tests.support.mutant_tests import is_late, note_found

LIMIT_S = 200.0
"""Seconds that tests may take; the one that runs then is tried alone, since it may be the machine."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Follow the plan instead of running all tests."""
    plan: dict[str, list[str]] = json.loads(Path(os.environ["MUTANT_PLAN"]).read_text("utf-8"))
    for place, tests in plan.items():
        if is_late():
            break
        order = {test: number for number, test in enumerate(tests)}
        places = ((order.get(item.nodeid, order.get(item.nodeid.partition("::")[0])), item) for item in session.items)
        found = sorted(((place, item) for place, item in places if place is not None), key=lambda pair: pair[0])
        failed = _find_failing(place, [item for _, item in found])
        note_found(Path(os.environ["MUTANT_FOUND"]), place, failed)
    return True


def _find_failing(place: str, items: Sequence[pytest.Item]) -> str:
    """Return a test that passes alone without a mutant, and fails or does not end alone with it; empty: none does."""
    until = time.monotonic() + 2 * LIMIT_S
    while (failed := _judge(place, items)) and time.monotonic() < until:
        alone = [item for item in items if item.nodeid == failed]
        if not _judge("", alone) and _judge(place, alone):
            return failed
        items = [item for item in items if item.nodeid != failed]
    return ""


def _judge(place: str, items: Sequence[pytest.Item]) -> str:
    """Return the test that fails with a mutant on, or that does not end; empty: none."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        os.setsid()
        mutant_switch.on = os.environ[mutant_switch.ON] = place
        _run(items, writing)
    os.close(writing)
    begun, ended = time.monotonic(), 0
    while not ended and time.monotonic() - begun < LIMIT_S:
        time.sleep(0.02)
        ended, _ = os.waitpid(child, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and what its tests have started
    if not ended:
        os.waitpid(child, 0)
    with os.fdopen(reading, encoding="utf-8") as told:
        last = [line for line in told.read().split("\n") if line][-1:]
    return last[0] if last and last != ["passed"] else ""


def _run(items: Sequence[pytest.Item], writing: int) -> NoReturn:
    """Run tests until one fails, in the child; tell which begins."""
    try:
        for item, following in zip(items, [*items[1:], None], strict=False):
            os.write(writing, f"{item.nodeid}\n".encode())
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                os._exit(1)
        os.write(writing, b"passed\n")
    finally:
        os._exit(0)
