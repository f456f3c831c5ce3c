"""A coordinator that is killed and started again, at another port: its machines find it, and keep their layers."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

from parallax_core.cluster.membership.join_code import shorten_code
from tests.e2e.test_run import ROOM, coordinating, homes, read_ready, started
from tests.e2e.test_workers import read_stream, wait_until

__all__ = ("homes",)

OPTIONS = ("--no-local", "--nodes", "2")
JOIN = ("join", "--backend", "mlx", "--port", "0", *ROOM)


def find_plan(log: Path) -> str:
    *_, last = re.finditer(r"pipeline 0 has (.*)", log.read_text())
    return last[1]


def test_machines_find_a_restarted_coordinator_and_keep_their_layers(homes: dict[str, Path], tmp_path: Path) -> None:
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    logs = {name: tmp_path / f"{name}.log" for name in ("one", "two")}
    with ExitStack() as stack:
        with coordinating(homes["first"], first, *OPTIONS) as (process, code):
            for name, word in (("one", code), ("two", shorten_code(code))):
                stack.enter_context(started(homes[name], logs[name], *JOIN, word))
            whole = read_stream(read_ready(process, first), 0, lambda: None)
            assert whole[1] == "length"
        plan = find_plan(first)

        process, _ = stack.enter_context(coordinating(homes["first"], second, *OPTIONS))
        server = read_ready(process, second)
        assert find_plan(second) == plan
        assert "load " not in second.read_text(), "the layers are still loaded"
        assert read_stream(server, 0, lambda: None) == whole
        assert all(log.read_text().count("joined head=head") == 2 for log in logs.values())

        again = tmp_path / "again.log"
        stack.enter_context(started(homes["one"], again, *JOIN))
        wait_until(lambda: "joined head=head" in again.read_text())
